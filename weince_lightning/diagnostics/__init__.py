"""Is the tail of an encoder's hard negatives Weibull? Numbers, figures and words."""
