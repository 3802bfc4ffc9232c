"""Readers: every format gives what was written, compressed or not, at once or in batches."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import threading

import numpy as np
import pytest
import scipy.sparse as sp

from extremax.data import DataFileError, iter_dataset, load_dataset, sparse_text


def xmc_text(X, label_lists, n_labels, *, header=True, one_based=False):
    """Write a matrix as XMC text, number by number."""
    X = sp.csr_matrix(X)
    lines = [f"{X.shape[0]} {X.shape[1]} {n_labels}"] if header else []
    for i, labels in enumerate(label_lists):
        columns, values = X.indices[X.indptr[i] : X.indptr[i + 1]], X.data[X.indptr[i] : X.indptr[i + 1]]
        features = " ".join(f"{c + one_based}:{float(v)!r}" for c, v in zip(columns, values, strict=True))
        lines.append(",".join(map(str, labels)) + " " + features)
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def sample():
    rng = np.random.default_rng(0)
    X = sp.random(40, 30, density=0.2, format="csr", dtype=np.float32, random_state=rng)
    labels = [rng.choice(12, size=rng.integers(0, 4), replace=False).tolist() for _ in range(40)]
    return X, labels


def as_lists(Y):
    return [Y.indices[Y.indptr[i] : Y.indptr[i + 1]].tolist() for i in range(Y.shape[0])]


@pytest.mark.small
def test_xmc_matches_reference(sample, tmp_path):
    X, labels = sample
    path = tmp_path / "data.txt"
    path.write_bytes(xmc_text(X, labels, 12))
    data = load_dataset(path)
    assert data.format == "xmc"
    assert data.X.dtype == np.float32
    assert (data.X != X).nnz == 0
    assert as_lists(data.y) == labels
    assert data.y.shape == (40, 12)
    assert data.multilabel
    assert data.n_samples == 40


def compressor(kind):
    if kind == "zst":
        return pytest.importorskip("zstandard").ZstdCompressor().compress
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind]


@pytest.mark.parametrize(("kind", "named"), [("gz", True), ("bz2", True), ("xz", False), ("zst", False)])
def test_compression_invariant(kind, named, sample, tmp_path):
    X, labels = sample
    compress = compressor(kind)
    text = xmc_text(X, labels, 12)
    path = tmp_path / (f"data.txt.{kind}" if named else "data")
    path.write_bytes(compress(text[:500]) + compress(text[500:]))  # two members, as from appending
    data = load_dataset(path)
    assert (data.X != X).nnz == 0
    path.write_bytes(compress(text)[:-20])
    with pytest.raises(DataFileError, match="damaged or ends early"):
        load_dataset(path, format="xmc")


@pytest.mark.parametrize("size", [100, 1000])
def test_chunk_size_invariant(size, sample, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_text, "_CHUNK_BYTES", size)
    X, labels = sample
    path = tmp_path / "data.txt"
    path.write_bytes(xmc_text(X, labels, 12)[:-1])  # and no newline at the end
    data = load_dataset(path)
    assert (data.X != X).nnz == 0
    assert as_lists(data.y) == labels
    batches = list(iter_dataset(path))
    assert len(batches) > 2
    assert (sp.vstack([batch.X for batch in batches]) != X).nnz == 0
    assert [row for batch in batches for row in as_lists(batch.y)] == labels


def test_stream_and_pipe_same_everywhere(sample):
    X, labels = sample
    text = xmc_text(X, labels, 12)
    assert (load_dataset(io.BytesIO(text)).X != X).nnz == 0
    read, write = os.pipe()

    def feed():
        with os.fdopen(write, "wb") as sink:
            for start in range(0, len(text), 300):
                sink.write(text[start : start + 300])
                sink.flush()

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(read, "rb") as source:
        data = load_dataset(source)
        assert not source.closed
    thread.join()
    assert (data.X != X).nnz == 0


@pytest.mark.parametrize("one_based", [False, True])
def test_libsvm_matches_reference(one_based, sample, tmp_path):
    X, _ = sample
    X = X.tolil()
    X[0, 0] = 1.5  # an index 0 (or 1) that "auto" can see
    X = X.tocsr()
    y = np.arange(40) - 20
    path = tmp_path / "data.svm"
    path.write_bytes(
        b"# a comment\n\n" + xmc_text(X, [[label] for label in y], 0, header=False, one_based=one_based)
    )
    data = load_dataset(path)
    assert data.format == "libsvm"
    np.testing.assert_array_equal(data.y, y)
    assert (X[:, : data.X.shape[1]] != data.X).nnz == 0
    wide = load_dataset(path, n_features=50, zero_based=not one_based)
    assert wide.X.shape == (40, 50)
    batches = list(iter_dataset(path, n_features=50, zero_based=not one_based))
    assert (batches[0].X != wide.X).nnz == 0
    if not one_based:
        with pytest.raises(DataFileError, match="feature index 0"):
            load_dataset(path, zero_based=False)
    with pytest.raises(ValueError, match="n_features and zero_based"):
        list(iter_dataset(path))


def test_libsvm_details():
    data = load_dataset(
        io.BytesIO(b"+1 1:1 2:2 # note\r\n-1.0 2:1e-3\t3:+.5\n3,4 1:-2.5E1\n 2:7\n   \n"), format="libsvm"
    )
    expected = [[1, 2, 0], [0, 1e-3, 0.5], [-25, 0, 0], [0, 7, 0]]
    np.testing.assert_array_equal(data.X.toarray(), np.array(expected, dtype=np.float32))
    assert data.label_names == ["-1", "1", "3", "4"]
    assert as_lists(data.y) == [[1], [0], [2, 3], []]
    unsorted = load_dataset(io.BytesIO(b"1 3:1 2:5 3:2\n"))
    np.testing.assert_array_equal(unsorted.X.toarray(), [[0, 5, 3]])


@pytest.mark.small
def test_numbers_match_reference():
    rng = np.random.default_rng(0)
    texts = [
        "0",
        "1",
        "-0.0",
        "12345678901234567890123",
        "0.000000000000000000000000000012345678",
        "1e-45",
        "3.4028234e38",
        "1e-400",
    ]
    texts += ["1.17549435e-38", "16777217", "0.1", ".5", "5.", "1E5", "0e999"]
    texts += [repr(float(v)) for v in rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200)]
    texts += [
        f"{v:.{d}f}" for v, d in zip(rng.standard_normal(100) * 1000, rng.integers(0, 20, 100), strict=True)
    ]
    line = "0 " + " ".join(f"{i}:{text}" for i, text in enumerate(texts)) + "\n"
    data = load_dataset(io.BytesIO(line.encode()), format="libsvm", zero_based=True)
    np.testing.assert_array_equal(
        data.X.toarray()[0], np.array([float(text) for text in texts]).astype(np.float32)
    )


LABEL, FEATURE = "a label from 0 to 4, got ", "index:value with an index below 6 and a finite number, got "
BAD_LINES = [
    (b"a 1:2", 1, f"{LABEL}'a'"),
    (b"1; 1:2", 1, f"{LABEL}'1;'"),
    (b"1, 1:2", 1, f"{LABEL}'1,'"),
    (b"1,2:3", 1, f"{FEATURE}'1,2:3'"),
    (b"1.5 1:2", 1, f"{LABEL}'1.5'"),
    (b"9 1:2", 1, f"{LABEL}'9'"),
    (b"0,-1 1:2", 1, f"{LABEL}'0,-1'"),
    (b"1 x:2", 3, f"{FEATURE}'x:2'"),
    (b"1 -1:2", 3, f"{FEATURE}'-1:2'"),
    (b"1 3", 3, f"{FEATURE}'3'"),
    (b"1 3 4:5", 3, f"{FEATURE}'3'"),
    (b"1 99999999999:2", 3, f"{FEATURE}'99999999999:2'"),
    (b"1 2:1 7:2", 7, f"{FEATURE}'7:2'"),
    (b"7:2", 1, f"{FEATURE}'7:2'"),
    (b"1 2:", 3, f"{FEATURE}'2:'"),
    (b"1 2:abc", 3, f"{FEATURE}'2:abc'"),
    (b"1 2:nan", 3, f"{FEATURE}'2:nan'"),
    (b"1 2:inf", 3, f"{FEATURE}'2:inf'"),
    (b"1 2:1e99", 3, f"{FEATURE}'2:1e99'"),
    (b"1 2:1e", 3, f"{FEATURE}'2:1e'"),
    (b"1 2:1.5x", 3, f"{FEATURE}'2:1.5x'"),
    (b"1 2:1,3:4", 3, f"{FEATURE}'2:1,3:4'"),
]


@pytest.mark.small
@pytest.mark.parametrize(("line", "column", "expected"), BAD_LINES, ids=[str(case[0]) for case in BAD_LINES])
def test_bad_sparse_line_rejects(line, column, expected, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"3 6 5\n0 1:1\n" + line + b"\n4 5:2\n")
    with pytest.raises(DataFileError, match="skip_bad_lines=True") as error:
        load_dataset(path)
    assert (error.value.line, error.value.column) == (3, column)
    assert expected in str(error.value)
    assert str(error.value).startswith(f"{path}, line 3, column {column}: expected")
    data = load_dataset(path, skip_bad_lines=True)
    assert data.n_skipped == 1
    assert expected in data.skipped[0]
    np.testing.assert_array_equal(data.X.toarray(), [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2]])
    assert as_lists(data.y) == [[0], [4]]


def test_many_bad_lines_are_counted():
    text = b"".join(b"1 1:1\n" * 10 + b"bad\n" for _ in range(100))
    data = load_dataset(io.BytesIO(text), format="libsvm", skip_bad_lines=True)
    assert data.n_skipped == 100
    assert data.n_samples == 1000
    assert len(data.skipped) == 20


@pytest.mark.error
@pytest.mark.parametrize("batch_rows", [None, 10])
def test_more_than_a_tenth_of_bad_lines_rejects(batch_rows):
    text = b"text,label\n" + b"a,1\n" * 40 + "Tür,2\n".encode("cp1252") * 5
    stream = io.BytesIO(text + b"a,1\n" * 5)
    if batch_rows is None:
        assert load_dataset(stream, skip_bad_lines=True).n_skipped == 5  # a tenth of 50
        with pytest.raises(ValueError, match="5 of 49 rows are malformed") as error:
            load_dataset(io.BytesIO(text + b"a,1\n" * 4), skip_bad_lines=True)
        assert "line 42, column 1: expected UTF-8 text; this looks like cp1252 ('Tür')" in str(error.value)
        return
    assert sum(batch.n_samples for batch in iter_dataset(stream, batch_rows=10, skip_bad_lines=True)) == 45
    early = io.BytesIO(
        b"text,label\n" + b"x\n" * 5 + b"a,1\n" * 95
    )  # of 10 rows half are bad, of all a twentieth
    assert sum(batch.n_skipped for batch in iter_dataset(early, batch_rows=10, skip_bad_lines=True)) == 5
    batches = iter_dataset(io.BytesIO(text[: len(text) - 5 * 6] + b"x\n" * 6), skip_bad_lines=True)
    with pytest.raises(ValueError, match="6 of 46 rows are malformed"):
        list(batches)
    bad = io.BytesIO(b"text,label\n" + b"a,1\nx\n" * 100_000)
    with pytest.raises(ValueError, match="59 of 119 rows are malformed"):  # long before the end
        list(iter_dataset(bad, batch_rows=10, skip_bad_lines=True))


def test_header_problems_rejects():
    with pytest.raises(DataFileError, match="announces 3 rows, the file has 1"):
        load_dataset(io.BytesIO(b"3 6 5\n0 1:1\n"))
    with pytest.raises(DataFileError, match="announces 1 rows, the file has more"):
        load_dataset(io.BytesIO(b"1 6 5\n0 1:1\n0 1:1\n"))
    with pytest.raises(DataFileError, match="expected three numbers"):
        load_dataset(io.BytesIO(b"0 1:1\n"), format="xmc")
    with pytest.raises(DataFileError, match="empty"):
        load_dataset(io.BytesIO(b""), format="xmc")
    # blank rows count, blank lines at the end do not
    data = load_dataset(io.BytesIO(b"3 6 5\n0 1:1\n\n \n\n\n"))
    assert data.X.shape == (3, 6)
    assert data.y.nnz == 1


def test_format_of_one_long_line():
    line = b"1 " + b" ".join(b"%d:0.25" % i for i in range(20_000)) + b"\n"
    data = load_dataset(io.BytesIO(line))
    assert data.format == "libsvm"
    assert data.X.nnz == 20_000


def test_byte_order_mark():
    assert load_dataset(io.BytesIO(b"\xef\xbb\xbf1 2 2\n0 1:1\n")).X.shape == (1, 2)
    assert load_dataset(io.BytesIO(b"\xef\xbb\xbftext,label\nhello,a\n")).texts == ["hello"]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_table_matches_reference(delimiter, tmp_path):
    path = tmp_path / ("t.csv" if delimiter == "," else "t.tsv")
    rows = [("label", "text"), ("A1", "fell off a ladder"), ("B2", "smile 😀 ünï"), ("A1", "")]
    path.write_text("\n".join(delimiter.join(row) for row in rows) + "\n", encoding="utf-8")
    data = load_dataset(path)
    assert data.texts == ["fell off a ladder", "smile 😀 ünï", ""]
    assert data.y.tolist() == ["A1", "B2", "A1"]
    assert load_dataset(path, text_column="text", label_column="label").texts == data.texts
    assert load_dataset(path, text_column=1).y.tolist() == data.y.tolist()
    batches = list(iter_dataset(path, batch_rows=2))
    assert [batch.n_samples for batch in batches] == [2, 1]
    assert [text for batch in batches for text in batch.texts] == data.texts


def test_csv_quotes_and_guessing():
    data = load_dataset(io.BytesIO(b'"a, ""b""\nc",1\nshorter,2\n'), format="csv")
    assert data.texts == ['a, "b"\nc', "shorter"]
    assert data.y.tolist() == ["1", "2"]
    data = load_dataset(io.BytesIO(b'12\tsay "hi\n13\tsecond\n'))  # a quote in TSV is a character
    assert data.format == "tsv"
    assert data.texts == ['say "hi', "second"]
    data = load_dataset(io.BytesIO(b"x,a b c,7\ny,d,8\n"), text_column=1, label_column=2)
    assert data.texts == ["a b c", "d"]
    data = load_dataset(io.BytesIO(b"text,labels\none,a|b\ntwo,\nthree,c\n"), label_separator="|")
    assert data.label_names == ["a", "b", "c"]
    assert as_lists(data.y) == [[0, 1], [], [2]]
    assert load_dataset(io.BytesIO(b"one\ntwo\n"), format="csv").y is None
    assert load_dataset(io.BytesIO(b"a;1\nbcd;2\n"), format="csv", delimiter=";").y.tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("text", "texts", "labels"),
    [
        ("text;label\na; b, c;1\nd;2\n", None, None),  # a row of three fields is for the reader to report
        ('Label;Text\n1;"a; b, c"\n2;d\n', ["a; b, c", "d"], ["1", "2"]),
        ('"a; b, one";"x, y"\n"c; d, two";"z, y"\n', ["a; b, one", "c; d, two"], ["x, y", "z, y"]),
        ('"Ticket, short";Label\n"a, b";1\nc;2\n', ["a, b", "c"], ["1", "2"]),
        ("Ticket, short;Label\na, b, c;1\nd;2\n", ["a, b, c", "d"], ["1", "2"]),
        ('"text, in full";label\n"a;\n b, c";1\nd;2\n', ["a;\n b, c", "d"], ["1", "2"]),
        ("some words;1\nmore;2", ["some words", "more"], ["1", "2"]),  # and no newline at the end
        ("some words|1\nmore|2\n", ["some words", "more"], ["1", "2"]),
        ("text\na; b\nc; d\n", ["a; b", "c; d"], None),
        ("a; b\nc\n", ["a; b", "c"], None),
    ],
)
def test_delimiter_is_seen(text, texts, labels, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    if texts is None:
        with pytest.raises(DataFileError, match="line 2: expected 2 columns, got 3"):
            load_dataset(path)
        return
    data = load_dataset(path)
    assert data.texts == texts
    assert (None if data.y is None else data.y.tolist()) == labels


def test_commas_of_the_first_row_are_separators_unless_a_name_says_otherwise(tmp_path):
    """Several labels behind a comma, and one row that is wrong: told, and not read by its semicolons."""
    path = tmp_path / "t.csv"
    path.write_text("some text here,a;b\nother text there,c;d\nmore, with comma,e;f\n")
    with pytest.raises(DataFileError, match="line 3: expected 2 columns, got 3"):
        load_dataset(path, label_separator=";")


EXCEL = 'Nr;Text;Queue\r\n1;"Für die Tür: Schlüssel, 3 €";Büro\r\n2;kein Netz;IT\r\n;;\r\n'


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (EXCEL.encode("utf-8-sig"), {}),
        (EXCEL.encode("utf-16"), {}),
        (b"\xfe\xff" + EXCEL.encode("utf-16-be"), {}),
        (gzip.compress(EXCEL.encode("utf-16")), {}),
        (EXCEL.encode("utf-16-le"), {"encoding": "utf-16-le"}),
        (EXCEL.encode("cp1252"), {"encoding": "cp1252"}),
        (EXCEL.replace(";", "\t").encode("utf-16"), {"format": "tsv"}),
    ],
)
def test_encodings_of_a_spreadsheet(content, options, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    for source in (tmp_path / "t.csv", io.BytesIO(content)):
        data = load_dataset(source, label_column="queue", **options)
        assert data.texts == ["Für die Tür: Schlüssel, 3 €", "kein Netz"]
        assert data.y.tolist() == ["Büro", "IT"]


def test_arrays_have_no_encoding(tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3, dtype=np.float32))
    assert load_dataset(tmp_path / "X.npy", encoding="cp1252").X.shape == (3, 3)


@pytest.mark.error
@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (EXCEL.encode("cp1252"), {}, "line 2, column 2: expected UTF-8 text; this looks like cp1252 ('Für')"),
        ("text;Tür\na;1\n".encode("cp1252"), {}, "line 1, column 2: expected UTF-8 text; this looks like"),
        (b"text;label\n\x80\xc3\xa4;1\n", {}, "column 1: expected UTF-8 text; name the encoding of the file"),
        (b"text;label\na;1\nT\x81r;1\n", {"encoding": "cp1252"}, "line 3: the byte 0x81 has no meaning in"),
        (b"text;label\na;1\n", {"encoding": "cp152"}, "encoding is 'cp152', which Python does not know"),
        (b"text;label\na;1\n", {"encoding": "base64"}, "encoding is 'base64', which Python does not know"),
        (b"Nr;Topic;Queue\n1;a b;x\n2;c d;y\n", {}, "label_column. Columns are 'Nr', 'Topic', 'Queue'."),
        (b"1;a b;x\n2;c d;y\n", {}, "label_column. Columns are 0 ('1'), 1 ('a b'), 2 ('x')."),
    ],
)  # fmt: skip
def test_encoding_and_columns_are_named_rejects(content, options, sentence, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_dataset(tmp_path / "t.csv", **options)


def test_columns_are_named_where_there_is_no_label():
    data = load_dataset(io.BytesIO(b"Nr;Text;Queue\n1;a b;x\n2;c d;y\n"))
    assert data.note.endswith("texts from 'Text', no labels among 'Nr', 'Queue'")


def test_long_document():
    text = "word " * 250_000  # 1.25 MB, ten times the csv module's own limit
    data = load_dataset(io.BytesIO(f"text,label\n{text},1\n".encode()))
    assert data.texts == [text]


def test_bad_table_rejects():
    cases = [
        (b"text,label\na,1\nb\nc,2\n", "line 3: expected 2 columns, got 1"),
        (b"text,label\na,1\nb,\nc,2\n", "line 3, column 2: expected a label"),
        (b"text,label\na,1\n\xff\xfe,5\nc,2\n", "line 3, column 1: expected UTF-8"),
        (b'text,label\na,1\n"b"x,5\nc,2\n', "line 3: expected a row of quoted or plain fields"),
    ]
    for text, message in cases:
        with pytest.raises(DataFileError, match=message):
            load_dataset(io.BytesIO(text))
        data = load_dataset(io.BytesIO(text), skip_bad_lines=True)
        assert data.texts == ["a", "c"]
        assert data.n_skipped == 1
    with pytest.raises(DataFileError, match="line 2: a quote that opens in this row is never closed"):
        load_dataset(io.BytesIO(b'text,label\n"a,1\nb,2\n'), skip_bad_lines=True)
    with pytest.raises(DataFileError, match="no column 'body'; columns are 'text', 'label'"):
        load_dataset(io.BytesIO(b"text,label\na,1\n"), text_column="body")
    with pytest.raises(DataFileError, match="no column 5"):
        load_dataset(io.BytesIO(b"text,label\na,1\n"), text_column=5)
    with pytest.raises(DataFileError, match="which column holds the text"):
        load_dataset(io.BytesIO(b"a,b,c\nd,e,f\n"))


def test_fasttext_matches_reference():
    text = "__label__a some words\n__label__b __label__c other\n\nno label 😀\n".encode()
    data = load_dataset(io.BytesIO(text))
    assert data.format == "fasttext"
    assert data.texts == ["some words", "other", "no label 😀"]
    assert data.label_names == ["a", "b", "c"]
    assert as_lists(data.y) == [[0], [1, 2], []]
    single = load_dataset(io.BytesIO(b"__label__a x\n__label__b y\n"))
    assert single.y.tolist() == ["a", "b"]
    with pytest.raises(DataFileError, match="line 2, column 1: expected a name after __label__"):
        load_dataset(io.BytesIO(b"__label__a x\n__label__ y\n"))
    with pytest.raises(DataFileError, match="line 2, column 12: expected UTF-8"):
        load_dataset(io.BytesIO(b"__label__a x\n__label__a \xff\n"))


def test_npy_is_mapped(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.arange(20))
    np.save(tmp_path / "names.npy", np.array(["a", "b"] * 10))
    for source in (tmp_path, tmp_path / "X.npy"):
        data = load_dataset(source)
        assert isinstance(data.X, np.memmap)
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.y, np.arange(20))
    assert load_dataset(tmp_path / "X.npy", labels_path=tmp_path / "names.npy").y[1] == "b"
    assert [batch.n_samples for batch in iter_dataset(tmp_path, batch_rows=8)] == [8, 8, 4]
    np.save(tmp_path / "y.npy", np.arange(19))
    with pytest.raises(DataFileError, match=r"one label for each of 20 rows, got shape \(19,\)"):
        load_dataset(tmp_path)
    np.save(tmp_path / "flat.npy", np.arange(19))
    with pytest.raises(DataFileError, match="rows and features"):
        load_dataset(tmp_path / "flat.npy")
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(DataFileError, match="numbers or strings"):
        load_dataset(tmp_path / "objects.npy")


def test_npz_holds_features_and_labels(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(20), unused=np.zeros(2))
    np.savez_compressed(tmp_path / "b.npz", embeddings=np.asfortranarray(X), label=np.arange(20))
    np.savez(tmp_path / "c.npz", features=np.asfortranarray(X))
    for name in "abc":
        data = load_dataset(tmp_path / f"{name}.npz")
        np.testing.assert_array_equal(data.X, X)
        assert name == "c" or data.y.tolist() == list(range(20))
    sp.save_npz(tmp_path / "s.npz", sp.csr_matrix(X))
    np.testing.assert_array_equal(load_dataset(tmp_path / "s.npz").X.toarray(), X)
    np.savez(tmp_path / "d.npz", a=X, b=X)
    with pytest.raises(DataFileError, match="no array X; it holds a, b"):
        load_dataset(tmp_path / "d.npz")
    renamed = (tmp_path / "a.npz").read_bytes().replace(b"y.npy", b"y.np9")  # no checksum covers names
    (tmp_path / "f.npz").write_bytes(renamed)
    with pytest.raises(DataFileError, match=r"holds 'y\.np9', which is no array"):
        load_dataset(tmp_path / "f.npz")
    (tmp_path / "e.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(DataFileError, match=r"not a whole \.npz"):
        load_dataset(tmp_path / "e.npz")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("fixed", [True, False])
def test_columns_match_reference(kind, fixed, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    flat = pa.array(X.ravel())
    vectors = (
        pa.FixedSizeListArray.from_arrays(flat, 3) if fixed else pa.array(X.tolist(), pa.list_(pa.float64()))
    )
    names = [f"c{i % 4}" for i in range(20)]
    table = pa.table(
        {
            "id": list(range(20)),
            "embedding": vectors,
            "label": pa.array(names).dictionary_encode(),
            "text": names,
        }
    )
    path = tmp_path / "data"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        writer = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with writer(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=7)
    seen = []
    if kind == "stream":
        data = load_dataset(path, format="arrow")
    else:
        data = load_dataset(path, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (20, 20)
    np.testing.assert_array_equal(data.X, X)
    assert data.y.tolist() == names
    batches = list(
        iter_dataset(
            path, batch_rows=6, format="parquet" if kind == "parquet" else "arrow", text_column="text"
        )
    )
    assert [text for batch in batches for text in batch.texts] == names
    with pytest.raises(DataFileError, match="no column 'vec'; columns are 'id', 'embedding'"):
        load_dataset(path, vector_column="vec", format="arrow" if kind == "stream" else "auto")


def test_parquet_labels_and_ragged_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "labels": [["b", "a"], ["c"]]}), path)
    data = load_dataset(path)
    assert data.label_names == ["a", "b", "c"]
    assert as_lists(data.y) == [[1, 0], [2]]
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [7, 9]}), path)
    assert load_dataset(path).y.tolist() == [7, 9]
    pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0]]}), path)
    with pytest.raises(DataFileError, match="row 1 has 1 features, the rows before have 2"):
        load_dataset(path)
    pq.write_table(pa.table({"x": [[1.0, 2.0], None]}), path)
    with pytest.raises(DataFileError, match="row 1 has no vector"):
        load_dataset(path)
    pq.write_table(pa.table({"x": [1, 2]}), path)
    with pytest.raises(DataFileError, match="no column of float vectors or texts"):
        load_dataset(path)


def test_progress_counts_to_the_end(sample, tmp_path):
    X, labels = sample
    path = tmp_path / "data.txt.gz"
    path.write_bytes(gzip.compress(xmc_text(X, labels, 12)))
    seen = []
    load_dataset(path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert seen == sorted(seen)


def test_reduce_matches_reference():
    text = b"4 2 5\n3,1 0:1\n\n2 1:1\n1,2,4 0:2\n"
    first = load_dataset(io.BytesIO(text), reduce="first")
    assert first.y.tolist() == [3, 2, 1]
    assert first.n_unlabelled == 1
    assert first.X.toarray().tolist() == [[1, 0], [0, 1], [2, 0]]
    assert load_dataset(io.BytesIO(text), reduce="smallest").y.tolist() == [1, 2, 1]
    assert load_dataset(io.BytesIO(text), reduce="rarest").y.tolist() == [3, 2, 4]
    assert load_dataset(io.BytesIO(text), reduce="rarest", label_counts={3: 9, 2: 1}).y.tolist() == [1, 2, 1]
    pairs = load_dataset(io.BytesIO(text), reduce="all")
    assert pairs.y.tolist() == [3, 1, 2, 1, 2, 4]
    assert pairs.X.toarray()[:, 0].tolist() == [1, 1, 0, 2, 2, 2]
    named = load_dataset(io.BytesIO(b"__label__b __label__a x\n__label__a y\n"), reduce="rarest")
    assert named.y.tolist() == ["b", "a"]
    assert named.texts == ["x", "y"]


def test_bad_requests_rejects(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_dataset(tmp_path / "absent.csv")
    with pytest.raises(IsADirectoryError, match=r"holds X\.npy"):
        load_dataset(tmp_path)
    with pytest.raises(ValueError, match="format is 'excel'"):
        load_dataset(io.BytesIO(b""), format="excel")
    with pytest.raises(ValueError, match="reduce is 'last'"):
        load_dataset(io.BytesIO(b"1 1 1\n0 0:1\n"), reduce="last")
    with pytest.raises(DataFileError, match="cannot tell the format"):
        load_dataset(io.BytesIO(b"just words\nmore words\n"))
    with pytest.raises(ValueError, match=r"labels_path is for features in \.npy or \.npz"):
        load_dataset(io.BytesIO(b"text,label\na,1\n"), labels_path=tmp_path / "y.npy")
    with pytest.raises(ValueError, match="batch_rows is 0"):
        iter_dataset(io.BytesIO(b""), batch_rows=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\r\n\nb,c", ["a", "", "b,c"]),
        (b"\xef\xbb\xbfx\ny\n", ["x", "y"]),
    ],
)
def test_lines_are_texts(text, expected):
    assert load_dataset(io.BytesIO(text), format="lines").texts == expected
    batches = iter_dataset(io.BytesIO(text), format="lines", batch_rows=1)
    assert [line for batch in batches for line in batch.texts] == expected


def test_line_of_other_bytes_rejects():
    with pytest.raises(DataFileError, match=r"line 2, column 2: expected UTF-8 text"):
        load_dataset(io.BytesIO(b"ok\nb\xffd\n"), format="lines")
    data = load_dataset(io.BytesIO(b"ok\nb\xffd\n"), format="lines", skip_bad_lines=True)
    assert (data.texts, data.n_skipped) == (["ok"], 1)
