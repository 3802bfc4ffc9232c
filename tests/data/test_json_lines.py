"""JSON lines and arrays, headers of tables, and columns that are kept."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import warnings
from pathlib import Path
from typing import Any

import pytest

from extremax.data import iter_dataset, json_lines, load_dataset
from extremax.data.dataset import DataFileError
from extremax.data.text_tables import looks_like_header

ROWS = [
    {"id": "a7", "text": "the printer is broken, again", "label": "hardware"},
    {"id": "b3", "text": 'where is "my" invoice\nof May?', "label": "billing"},
    {"id": "c1", "text": "größer", "label": "hardware"},
]
TEXTS = [row["text"] for row in ROWS]
LABELS = [row["label"] for row in ROWS]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@pytest.mark.small
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.ndjson", "x.jsonl.gz", "x.json.xz", "x.txt"])
@pytest.mark.parametrize("indent", [None, 2])
def test_lines_and_arrays_are_read(tmp_path: Path, name: str, indent: int | None) -> None:
    content = lines(ROWS) if indent is None else json.dumps(ROWS, indent=indent).encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)(content)
    (tmp_path / name).write_bytes(packed)
    data = load_dataset(tmp_path / name)
    assert data.texts == TEXTS
    assert data.y.tolist() == LABELS
    assert data.note == "JSON: texts from 'text', labels from 'label'"


@pytest.mark.small
def test_bytes_of_a_pipe_are_recognised() -> None:
    for content in (lines(ROWS), json.dumps(ROWS).encode(), b"\xef\xbb\xbf" + lines(ROWS)):
        assert load_dataset(io.BytesIO(content)).texts == TEXTS
    assert load_dataset(io.BytesIO(b"[]"), format="json").n_samples == 0
    assert load_dataset(io.BytesIO(b'["one text", "two"]')).texts == ["one text", "two"]


@pytest.mark.small
def test_lists_of_labels_and_numbers() -> None:
    rows = [{"title": "a", "labels": ["x", "y"]}, {"title": "b", "labels": []}, {"title": "c", "labels": "x"}]
    data = load_dataset(io.BytesIO(lines(rows)))
    assert data.label_names == ["x", "y"]
    assert data.y.toarray().tolist() == [[1, 1], [0, 0], [1, 0]]
    data = load_dataset(io.BytesIO(lines([{"text": "a", "label": 3}, {"text": "b", "label": True}])))
    assert data.y.tolist() == ["3", "true"]  # as in a table, where all labels are strings


@pytest.mark.small
def test_fields_by_name_and_number() -> None:
    rows = [{"nr": 1, "words": "a", "queue": "x;y"}, {"nr": 2, "words": "b", "queue": "x"}]
    for text, label in (("words", "queue"), (1, 2), ("Words", 2)):
        data = load_dataset(
            io.BytesIO(lines(rows)), text_column=text, label_column=label, label_separator=";"
        )
        assert (data.texts, data.label_names) == (["a", "b"], ["x", "y"])
    with pytest.raises(DataFileError, match=r"there is no field 'boddy'; fields are 'nr', 'words', 'queue'"):
        load_dataset(io.BytesIO(lines(rows)), text_column="boddy")
    with pytest.raises(
        DataFileError, match=r"cannot tell which field holds the text.*'nr', 'words', 'queue'"
    ):
        load_dataset(io.BytesIO(lines(rows)))


@pytest.mark.error
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"text": "b", "label": ', "line 2: expected a JSON object in one line"),
        (b"[1, 2]", r"line 2: expected a JSON object, got \[1, 2\]"),
        (b'{"label": "x"}', "line 2: expected UTF-8 text in 'text', got nothing"),
        (b'{"text": 7, "label": "x"}', "expected UTF-8 text in 'text', got 7"),
        (b'{"text": "\\ud800", "label": "x"}', "expected UTF-8 text"),
        (b'{"text": "\xff", "label": "x"}', "expected UTF-8 text"),
        (b'{"text": "b"}', "expected a label or a list of labels in 'label', got nothing"),
        (b'{"text": "b", "label": {"a": 1}}', "expected a label or a list of labels"),
        (b'{"text": "b", "label": ""}', "expected a label or a list of labels"),
        (b'{"text": "b", "label": NaN}', "expected a label or a list of labels"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 100_000, "too many digits"),
    ],
)
def test_bad_line_is_named_or_skipped_rejects(line: bytes, sentence: str) -> None:
    content = lines(ROWS[:1]) + line + b"\n\n" + lines(ROWS[1:])
    with pytest.raises(DataFileError, match=sentence):
        load_dataset(io.BytesIO(content), format="jsonl")
    data = load_dataset(io.BytesIO(content), format="jsonl", skip_bad_lines=True)
    assert (data.texts, data.n_skipped) == (TEXTS, 1)


@pytest.mark.error
@pytest.mark.parametrize("content", [b'[{"text": "a"}, {"text"', b'[{"text": "a"} oops]', b"[", b"[{]"])
def test_broken_array_rejects(content: bytes) -> None:
    with pytest.raises(DataFileError, match="line 1: expected a JSON array of objects"):
        load_dataset(io.BytesIO(content), format="json")


def test_array_that_is_too_long_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_MAX_ARRAY_BYTES", 100)
    with pytest.raises(DataFileError, match="a JSON array has at most 100 bytes; write an object per line"):
        load_dataset(io.BytesIO(json.dumps([{"text": "x" * 100}]).encode()))


def test_bad_object_of_an_array_rejects() -> None:
    content = json.dumps([*ROWS[:1], {"text": 1}], indent=1).encode()
    with pytest.raises(DataFileError, match="expected UTF-8 text in 'text', got 1"):
        load_dataset(io.BytesIO(content))
    assert load_dataset(io.BytesIO(content), skip_bad_lines=True).n_skipped == 1


# -- headers


TICKETS = [
    ["the printer is broken", "hardware"],
    ["no paper in the printer", "hardware"],
    ["where is my invoice", "billing"],
    ["the invoice is wrong", "billing"],
    ["my screen is dark", "hardware"],
]


@pytest.mark.small
@pytest.mark.parametrize(
    ("first", "rows", "expected"),
    [
        (["ticket", "queue"], TICKETS, True),
        (["Ticket text", "Queue"], TICKETS, True),
        (["help", "billing"], TICKETS, False),  # a value of its column
        (["my invoice is lost", "refunds"], TICKETS, False),  # as long as other texts
        (["same", "same"], TICKETS, False),
        (["ticket", ""], TICKETS, False),
        (["ticket", "queue"], [[text, f"Q{i}"] for i, (text, _) in enumerate(TICKETS)], True),
        (["asthma", "J45"], [["acute asthma attack", "J46"], ["cough for weeks", "R05"]], False),
        (["asthma", "lung"], [["acute asthma attack", "bronchi"], ["cough for weeks", "throat"]], False),
        (["diagnosis", "icd"], [["acute asthma attack", "J46"], ["cough for weeks", "R05"]], True),
        (["text", "class"], TICKETS, True),
        (["text", "class"], [["text", "class"], ["text", "class"]], False),
        (["some words", "label"], [["more words", "a"], ["others", "b"]], True),
    ],
)
def test_header_is_recognised(first: list[str], rows: list[list[str]], expected: bool) -> None:
    assert looks_like_header([first, *rows]) is expected


@pytest.mark.small
def test_table_says_what_it_took_for_what() -> None:
    body = "".join(",".join(row) + "\n" for row in TICKETS)
    data = load_dataset(io.BytesIO(f"ticket,queue\n{body}".encode()))
    assert data.note == "CSV with a header: texts from 'ticket', labels from 'queue'"
    assert (data.n_samples, sorted(set(data.y.tolist()))) == (5, ["billing", "hardware"])
    data = load_dataset(io.BytesIO(body.encode()))
    assert data.note == "CSV without a header: texts from column 0, labels from column 1"
    assert data.n_samples == 5
    assert load_dataset(io.BytesIO(b"text\none\n"), format="csv").note.endswith("'text', no labels")
    data = load_dataset(io.BytesIO(f"ticket,queue\n{body}".encode()), text_column=0, label_column="Queue")
    assert data.n_samples == 5


@pytest.mark.small
def test_duplicate_names_warn() -> None:
    content = b"text,label,label\nthe printer,a,b\nthe screen,c,d\n"
    with pytest.warns(UserWarning, match="columns 1, 2 are all named 'label'; the name means the first"):
        data = load_dataset(io.BytesIO(content))
    assert data.y.tolist() == ["a", "c"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load_dataset(io.BytesIO(content), label_column=2).y.tolist() == ["b", "d"]


# -- columns that are kept


def table(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl":
        path.write_bytes(lines(ROWS))
    else:
        pd = pytest.importorskip("pandas")
        pd.DataFrame(ROWS).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_are_kept_with_the_numbers_of_rows(tmp_path: Path, kind: str) -> None:
    path = table(tmp_path, kind)
    batches = list(iter_dataset(path, batch_rows=2, keep=["id", "label"], ignore_labels=True))
    assert [batch.row_numbers for batch in batches] == [[0, 1], [2]]
    assert batches[0].columns == {"id": ["a7", "b3"], "label": ["hardware", "billing"]}
    assert batches[0].y is None
    (whole,) = iter_dataset(path, keep="all")
    assert list(whole.columns) == ["id", "text", "label"]
    assert whole.columns["text"] == whole.texts == TEXTS
    with pytest.raises(DataFileError, match=r"there is no (column|field) 'date'"):
        list(iter_dataset(path, keep=["date"]))


@pytest.mark.small
def test_numbers_of_rows_count_bad_ones() -> None:
    content = b"text,label\na,x\nb\nc,y\n"
    (data,) = iter_dataset(io.BytesIO(content), keep=[], skip_bad_lines=True)
    assert (data.texts, data.row_numbers) == (["a", "c"], [0, 2])
    for kind, content in (("lines", b"a\n\xff\nc\n"), ("fasttext", b"a\n__label__ b\nc\n")):
        found = list(iter_dataset(io.BytesIO(content), format=kind, keep="all", skip_bad_lines=True))  # type: ignore[arg-type]
        assert [text for data in found for text in data.columns["text"]] == ["a", "c"]
        assert [number for data in found for number in data.row_numbers or []] == [0, 2]


@pytest.mark.small
def test_labels_may_be_missing_where_they_are_ignored() -> None:
    (data,) = iter_dataset(io.BytesIO(b"text,label\na,\nb,x\n"), ignore_labels=True)
    assert (data.texts, data.y) == (["a", "b"], None)
