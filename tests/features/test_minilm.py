"""The sentence encoder in numpy, against the model of transformers with the same small random weights."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.features import minilm
from extremax.features.minilm import MiniLM
from extremax.runtime.threads import run

WORDS = ["the", "dog", "bit", "##ten", "by", "a", "cat", ",", "fa", "##ll", "##s", "cafe", "犬"]
TEXTS = ["The dog, bitten by a CAT", "falls", "café unknownword 犬犬", "", "falls", "a a a a a a the the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(vocabulary), **sizes)
    path = tmp_path_factory.mktemp("encoder")
    transformers.BertModel(config, add_pooling_layer=False).eval().save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return path


def test_embeddings_match_reference(folder):
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertModel

    found = MiniLM(folder).encode(TEXTS)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    for text, own in zip(TEXTS, found, strict=True):
        ids = tokenizer.encode(text).ids
        assert MiniLM(folder).tokenize(text) == ids
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        np.testing.assert_allclose(own, mean / np.linalg.norm(mean), atol=2e-6)


def test_one_word_is_enough(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "_find_folder", lambda: folder)
    texts, labels = ["the dog falls", "a cat bit the dog"] * 20, ["fall", "bite"] * 20
    clf = TextClassifier(ExtremeClassifier(random_state=0), encoder="minilm").fit(texts, labels)
    assert clf.features_ is not None
    assert clf.predict(texts[:2]).tolist() == labels[:2]
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")  # needs no other word: the name is that of a package
    np.testing.assert_array_equal(again.predict_proba(TEXTS), clf.predict_proba(TEXTS))


def test_threads_are_those_of_the_classifier(folder, monkeypatch):
    used = []

    def spy(task, n_tasks, n_threads):
        used.append(n_threads)
        run(task, n_tasks, n_threads)

    monkeypatch.setattr(minilm, "_find_folder", lambda: folder)
    monkeypatch.setattr(minilm, "run", spy)
    texts, labels = ["the dog falls", "a cat bit the dog"] * 20, ["fall", "bite"] * 20
    clf = TextClassifier(ExtremeClassifier(random_state=0, n_jobs=3), encoder="minilm").fit(texts, labels)
    clf.predict(TEXTS)
    assert len(used) >= 2
    assert set(used) == {3}
