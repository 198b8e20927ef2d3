"""Extreme-value statistics on arrays: is a tail Weibull, Gumbel or Fréchet?"""
