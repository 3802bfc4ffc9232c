"""ExtremeSoftmax in a Lightning module: training, validation, a checkpoint loaded again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from nn.two_processes import Model, rows

# Lightning and what it imports warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_lightning_trains_validates_and_restores(tmp_path, gradients):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model(n_shared=16, gradients=gradients, learning_rate=0.5)

        def training_step(self, batch, _):
            return self.model(*batch)

        def validation_step(self, batch, _):
            self.log("loss", self.model(*batch))

        def configure_optimizers(self):
            trained = [p for p in self.parameters() if p.requires_grad]
            return (torch.optim.Adagrad if gradients == "sparse" else torch.optim.AdamW)(trained, lr=0.05)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows()), batch_size=16)
    module, exact = Module(), Module().model.eval()(*rows()).detach()
    trainer = lightning.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        gradient_clip_val=None if gradients == "sparse" else 1.0,
        num_sanity_val_steps=0,
        limit_val_batches=4,
    )
    trainer.fit(module, data, data)
    reached = module.model.eval()(*rows()).detach()
    assert reached < exact
    (found,) = trainer.validate(module, data, verbose=False)
    assert found["loss"] == pytest.approx(float(reached), rel=1e-5)  # evaluation is exact
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = Module.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    torch.testing.assert_close(again.model.eval()(*rows()).detach(), reached)
