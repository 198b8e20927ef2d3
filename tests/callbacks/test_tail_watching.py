"""TailMonitor under modules that return nothing but the loss, as in lightly's examples."""

import pytest
import torch
from cases import few
from lightning.pytorch import LightningModule

from weince_lightning.callbacks import TailMonitor
from weince_lightning.losses import InfoNCELoss, WeibitLink, WEINCELoss

LOSSES = {
    "weince": lambda: WEINCELoss(0.2, queue_size=40),
    "infonce": lambda: InfoNCELoss(0.2, queue_size=40),
    "bank": lambda: InfoNCELoss(0.2, memory_bank_size=40),
    "released": WEINCELoss.released,
    "pooled": lambda: InfoNCELoss(link=WeibitLink("pooled")),
    "parameter": lambda: InfoNCELoss(torch.nn.Parameter(torch.tensor(0.3))),
}


class SimCLR(LightningModule):
    """The names and steps of lightly's example, with dropout to show the random numbers."""

    def __init__(self, loss, breaks_at=None):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 16))
        self.dropout = torch.nn.Dropout(0.2)
        self.criterion = loss
        self.breaks_at = breaks_at
        self.pairs = []

    def forward(self, images):
        return self.dropout(self.backbone(images))

    def training_step(self, batch, batch_idx):
        (x0, x1), _ = batch
        z0, z1 = self(x0), self(x1)
        self.pairs.append((z0.detach(), z1.detach()))
        loss = self.criterion(z0, z1)
        if batch_idx == self.breaks_at:
            raise RuntimeError("broken")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(make_trainer, make_data, loss, *callbacks, **options):
    torch.manual_seed(0)
    module = SimCLR(loss, **options)
    trainer = make_trainer(callbacks=[*callbacks], max_epochs=2)
    trainer.fit(module, make_data())
    return module, trainer.callback_metrics, torch.get_rng_state()


@pytest.mark.parametrize("name", few(LOSSES, 1))
def test_it_shows_what_weince_sees_and_the_training_is_as_without(name, make_trainer, make_data):
    plain, _, drawn = train(make_trainer, make_data, LOSSES[name]())
    module, metrics, drawn_too = train(make_trainer, make_data, LOSSES[name](), TailMonitor(5))
    assert torch.equal(drawn, drawn_too)
    states = module.state_dict(), plain.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert "terms" not in vars(module.criterion)

    sizes = ("queue_size", "memory_bank_size")
    weince = WEINCELoss(**{size: getattr(module.criterion, size) for size in sizes})
    *_, tail = [weince.terms(*(z.requires_grad_() for z in pair)).tail for pair in module.pairs[:5]]
    for of_tail, of_metric in {"gate": "lambda", "beta_hat": "beta_hat", "rho": "rho"}.items():
        expected = getattr(tail, of_tail).mean()
        torch.testing.assert_close(metrics[f"tail/{of_metric}_mean"], expected, rtol=1e-6, atol=0)


def test_it_lets_go_of_the_loss_if_the_training_breaks(make_trainer, make_data):
    loss = WEINCELoss()
    with pytest.raises(RuntimeError, match="broken"):
        train(make_trainer, make_data, loss, TailMonitor(1), breaks_at=1)
    assert "terms" not in vars(loss)
