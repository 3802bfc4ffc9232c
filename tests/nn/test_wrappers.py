"""The layer under Lightning and the Trainer of Hugging Face: schedules, clipping, checkpoints."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch
from torch import nn

from extremax.nn import ExtremeSoftmax, ShardedExtremeSoftmax, UniformSampler, make_optimizer

# Lightning and what it imports warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def own_environment():
    """Lightning's strategies leave variables by which a later Trainer takes itself for one of several."""
    with patch.dict(os.environ):
        yield


def rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=generator)
    return x, torch.arange(96) % 40


@pytest.mark.parametrize("sharded", [False, True])
def test_lightning_trains_validates_and_restores(tmp_path, sharded):
    """The sharded layer is inside of DistributedDataParallel, as Lightning's strategy wraps the module."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(6, 8)

        def configure_model(self):  # process groups exist from here on
            if not hasattr(self, "head"):
                torch.manual_seed(0)
                kind = ShardedExtremeSoftmax if sharded else ExtremeSoftmax
                self.head = kind(8, 40, sampler=UniformSampler(40, 16))

        def forward(self, x, y):
            return self.head(self.encoder(x), y).loss

        def training_step(self, batch, _):
            return self(*batch)

        def validation_step(self, batch, _):
            self.log("loss", self(*batch))

        def configure_optimizers(self):
            optimizer = make_optimizer(self, lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows()), batch_size=16)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=5,
        gradient_clip_val=1.0,
        accelerator="cpu",
        devices=1,
        strategy="ddp" if sharded else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data, data)
    assert trainer.callback_metrics["loss"] < 3.2  # untrained it is log 40 = 3.7
    (optimizer,) = trainer.optimizers
    assert optimizer.param_groups[0]["lr"] < 0.05
    if sharded:
        assert not hasattr(module.head.weight, "full_tensor")
        torch.distributed.destroy_process_group()
        return
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    again = Module()
    again.configure_model()
    again.load_state_dict(state["state_dict"])
    again.configure_optimizers()[0][0].load_state_dict(state["optimizer_states"][0])
    torch.testing.assert_close(again.eval()(*rows()), module.eval()(*rows()))


def test_trainer_of_hugging_face_trains_and_resumes(tmp_path):
    """The same weights after 30 steps as after 12, a checkpoint and 18 more."""
    from transformers import Trainer, TrainingArguments, set_seed

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encoder = nn.Linear(6, 8)
            self.head = ExtremeSoftmax(8, 40, sampler=UniformSampler(40, 16))

        def forward(self, x, labels):
            output, loss = self.head(self.encoder(x), labels)
            return {"loss": loss, "logits": output}

    data = [{"x": x, "labels": y} for x, y in zip(*rows(), strict=True)]

    def train(name, resume=None):
        arguments = TrainingArguments(
            output_dir=tmp_path / name,
            max_steps=30,
            save_steps=12,
            per_device_train_batch_size=16,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        model = Model()
        optimizer = make_optimizer(model, lr=0.05)
        trainer = Trainer(
            model, arguments, train_dataset=data, eval_dataset=data, optimizers=(optimizer, None)
        )
        set_seed(0)
        trainer.train(resume_from_checkpoint=resume)
        return model, trainer

    whole, trainer = train("whole")
    assert trainer.evaluate()["eval_loss"] < 3.2  # untrained it is log 40 = 3.7
    resumed, _ = train("resumed", tmp_path / "whole" / "checkpoint-12")
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict())
