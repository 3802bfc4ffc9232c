"""ExtremeSoftmax in the Trainer of Hugging Face: training, evaluation, a saved model loaded again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parent))

from nn.two_processes import Model, rows

# transformers and what it imports warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


class Wrapped(nn.Module):
    def __init__(self, gradients):
        super().__init__()
        self.model = Model(n_shared=16, gradients=gradients, learning_rate=0.5)

    def forward(self, x, labels):
        return {"loss": self.model(x, labels)}


@pytest.mark.parametrize("gradients", ["dense", "fused"])
def test_hugging_face_trainer_trains_evaluates_and_saves(tmp_path, gradients):
    from safetensors.torch import load_file
    from transformers import Trainer, TrainingArguments

    x, y = rows()
    model = Wrapped(gradients)
    before = model.eval()(x, y)["loss"].detach()
    data = [{"x": x[i], "labels": y[i]} for i in range(len(y))]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        num_train_epochs=5,
        learning_rate=0.05,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        bf16=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    model.eval()
    with torch.no_grad():
        reached = model(x, y)["loss"]
    assert reached < before
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(reached), rel=0.02)  # bfloat16
    trainer.save_model(str(tmp_path / "saved"))
    fresh = Wrapped(gradients)
    fresh.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name
