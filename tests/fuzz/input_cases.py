"""Damaged and crafted data files of every reader, and sparse matrices with index arrays that lie."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from extremax import ExtremeClassifier, evaluate, load_model
from extremax.class_texts import list_class_texts
from extremax.data import iter_dataset, load_dataset
from extremax.data.class_texts import read_class_texts
from extremax.solvers import NegativeSampling
from fuzz.bases import Base, rows
from fuzz.outcome import PASSED, REJECTED, is_sentence, require

XMC = b"4 6 5\n0,2 1:0.5 3:1\n1 0:2 5:-1e-3\n\n4 2:1\n"
LIBSVM = b"1 1:0.5 3:1\n-2 2:2\n3 # nothing\n7 6:1e3\n"
CSV = b'text,label\n"a, b",1\nc,2\n"d ""e""",1\n'
TSV = b"text\tlabel\na b\tx\nc\ty\n"
FASTTEXT = b"__label__a __label__b one two\n__label__c three\nfour\n"
CLASS_TEXTS = {
    "names.csv": b'N20;kidney stones;"renal; calculus"\nH93;ringing in the ears;\n',
    "names.tsv": b"label\tname\tother\nN20\tkidney stones\tcalculus\nN20\tstones\t\n",
    "names.json": b'{"id": "p1", "prefLabel": "cats", "altLabel": ["felines"]}\n{"id": 2, "name": "dogs"}\n',
}
LINES = b"one\ntwo three\n\nfour\n"
TOKENS = (
    b"99999999999",
    b"2147483648",
    b"4294967296",
    b"-1",
    b"1e400",
    b"nan",
    b"inf",
    b":",
    b",",
    b"\n",
    b"\r",
    b"\0",
    b'"',
    b"\t",
    b"#",
    b"\xff",
    b"\xef\xbb\xbf",
    b" ",
    b"0:0",
    b"__label__",
    b"18446744073709551616:1",
    b"1_0",
    b"9" * 400,
    b"\n" * 50,
    b"1:1 1:1",
    b"PK\x03\x04",
    b"\x93NUMPY",
    b"\xe2\x80\xa8",
)
HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': (-1,), }",
    "{'descr': '<U1', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': 'V8', 'fortran_order': True, 'shape': (3,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
    "(" * 500,
    "{",
    "",
    "\x00" * 20,
    "[" * 100 + "]" * 100,
)
SHAPES = (
    "2, 3",
    "0, 3",
    "6,",
    "2, 3, 1",
    "10**9,",
    "4611686018427387904, 4",
    "-2, 3",
    "True, 3",
    "2.0, 3",
    "3, 2",
    "",
)


class InputCases:
    """Cases by number; files are written to a folder, sparse matrices go to a small model."""

    def __init__(self, bases: dict[str, Base], folder: Path) -> None:
        self.folder = folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.models = {name: load_model(bases[name].path) for name in ("dense", "sparse", "tree")}
        X, y = rows()
        self.X, self.y = X, y
        self.files = base_files(X[:6], y[:6])
        # In a folder of their own: they are mapped, and cases write files of the same names.
        sound = folder / "sound"
        sound.mkdir()
        self.sound = {name: load(data, name, sound) for name, data in self.files.items()}

    def run(self, seed: int) -> str:
        """Run the case of a number."""
        rng = random.Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind = rng.random()
            if kind < 0.05:
                return self.run_class_texts(rng)
            return self.run_matrix(rng) if kind < 0.4 else self.run_file(rng)

    # -- files

    def run_file(self, rng: random.Random) -> str:
        """Read a file that was changed; what is read must be what a slow reader reads."""
        name = rng.choice(sorted(self.files))
        craft = CRAFTED.get(name.partition(".")[0])
        crafted = craft is not None and rng.random() < 0.5
        data = (
            craft(rng, self.X[:6], self.y[:6])
            if craft is not None and crafted
            else change_bytes(rng, self.files, name)
        )
        path = self.folder / name
        path.write_bytes(data)
        kind: Any = rng.choice(("auto", "auto", name.split(".")[-1] if "." not in name else "auto"))
        kind = FORMATS.get(name, "auto") if kind != "auto" or name in FORMATS else "auto"
        options: dict[str, Any] = {"format": kind, "skip_bad_lines": rng.random() < 0.2}
        try:
            if rng.random() < 0.2:
                batches = list(iter_dataset(path, batch_rows=2, n_features=6, zero_based=True, **options))
                found = batches[0] if batches else None
                for batch in batches:
                    check_dataset(batch)
            else:
                found = load_dataset(path, **options)
                check_dataset(found)
                self.check_content(name, data, crafted, found, options)
        except Exception as error:
            if is_sentence(error):
                return REJECTED
            raise
        return PASSED

    def run_class_texts(self, rng: random.Random) -> str:
        """Read a file of class texts that was changed: labels and texts that a fit takes, or a sentence."""
        path = self.folder / rng.choice(sorted(CLASS_TEXTS))
        path.write_bytes(change_bytes(rng, CLASS_TEXTS, path.name))
        try:
            found = read_class_texts(path)
        except Exception as error:
            if is_sentence(error):
                return REJECTED
            raise
        listed = list_class_texts(found)
        require(all(type(part) is str for part in (*listed.labels, *listed.texts)), "a text is no text")
        "".join((*listed.labels, *listed.texts)).encode()
        return PASSED

    def check_content(
        self, name: str, data: bytes, crafted: bool, found: Any, options: dict[str, Any]
    ) -> None:
        """Compare with the sound file where checksums protect it, else with a slow reader."""
        if name in ("xmc", "libsvm") and found.format == name:
            check_sparse_text(data, found, header=name == "xmc", skip=options["skip_bad_lines"])
        elif (
            not crafted
            and data.startswith(b"PK\x03\x04")
            and name in ("npz", "packed_npz", "sparse_npz", "packed_sparse_npz")
        ):
            require(same(found, self.sound[name]), "a damaged archive gives other data")
        elif name.endswith(".xz") and data.startswith(b"\xfd7zXZ\x00"):
            require(same(found, self.sound[name]), "a damaged file gives other data")

    # -- matrices

    def run_matrix(self, rng: random.Random) -> str:
        """Give a matrix to a method of a model; one whose indices lead outside must be refused."""
        matrix = sparse.csr_matrix(np.where(np.abs(self.X[:8]) > 0.7, self.X[:8], 0.0))
        kind = rng.choice(("csr", "csr", "csc", "coo", "bsr", "lil", "dia"))
        matrix = matrix.asformat(kind)
        as_array = rng.random() < 0.3
        matrix = type(matrix)(matrix) if not as_array else getattr(sparse, f"{kind}_array")(matrix)
        matrix = matrix.copy()
        if rng.random() < 0.9:
            change_matrix(rng, matrix)
        sound = is_sound(matrix)
        target = rng.choice(
            ("predict", "topk", "proba", "partial_fit", "evaluate", "labels", "labels", "fit", "pair")
        )
        model = self.models[rng.choice(sorted(self.models))]
        try:
            answer = self.give(rng, target, model, matrix)
        except Exception as error:
            if is_sentence(error) or str(error).startswith(SKLEARN):
                require(
                    not sound or target not in ("predict", "topk", "proba") or not_numbers(matrix),
                    f"refused: {error}",
                )
                return REJECTED
            raise
        require(sound, f"{target} accepts a {kind} matrix whose indices lead outside")
        if target == "proba":
            expected = model.predict_log_proba(np.asarray(matrix.toarray(), np.float32))
            require(
                bool(np.allclose(answer, expected, rtol=1e-3, atol=1e-3)), "a sparse matrix is read otherwise"
            )
        return PASSED

    def give(self, rng: random.Random, target: str, model: Any, matrix: Any) -> Any:
        """Call a method with a matrix as features or as indicators."""
        y = self.y[: matrix.shape[0]]
        if target == "predict":
            return model.predict(matrix)
        if target == "topk":
            return model.predict_topk(matrix, k=2, search=rng.choice(("exact", "beam")))
        if target == "proba":
            return model.predict_log_proba(matrix)
        if target == "evaluate":
            return evaluate(model, matrix, list(model.classes_[y]))
        if target == "pair":
            objective = ExtremeClassifier(n_epochs=0, n_jobs=1, random_state=0)
            return objective.fit((matrix, self.X[: matrix.shape[0]]), y)
        if target == "labels":
            matrix.data = np.ones_like(matrix.data) if matrix.format != "lil" else matrix.data
            clf = ExtremeClassifier(NegativeSampling(noise="uniform"), n_epochs=0, n_jobs=1, random_state=0)
            return clf.fit(self.X[: matrix.shape[0]], matrix)
        options: dict[str, Any] = {"n_epochs": 1, "n_jobs": 1, "random_state": 0}
        clf = ExtremeClassifier.with_solver(
            rng.choice(("negative_sampling", "sparse_softmax", "minibatch_softmax")), **options
        )
        return clf.fit(matrix, y) if target == "fit" else clf.partial_fit(matrix, y, classes=range(6))


SKLEARN = ("y has", "X has", "Found array", "Expected 2D")


def change_matrix(rng: random.Random, matrix: Any) -> None:
    """Change index arrays, pointers or lengths of a matrix in place."""
    odd = (-1, 0, 1, 4, 5, 6, 100, 2**31 - 1, -(2**31))
    for _ in range(rng.choice((1, 1, 2))):
        if matrix.format in ("csr", "csc", "bsr"):
            name = rng.choice(("indices", "indices", "indptr", "data"))
            array = getattr(matrix, name)
            kind = rng.random()
            if name == "data" or kind < 0.2:
                setattr(matrix, name, array[: max(0, len(array) - rng.choice((1, 2)))])
            elif kind < 0.3:
                setattr(matrix, name, np.concatenate([array, array[:1]]))
            elif kind < 0.4:
                setattr(
                    matrix,
                    name,
                    array.astype(rng.choice((np.int64, np.int16, np.uint8, np.float64, np.uint64))),
                )
            elif len(array):
                array = array.copy()
                array[rng.randrange(len(array))] = np.array(rng.choice(odd)).astype(array.dtype)
                setattr(matrix, name, array)
        elif matrix.format == "coo" and len(matrix.row):
            name = rng.choice(("row", "col"))
            array = getattr(matrix, name).copy()
            array[rng.randrange(len(array))] = rng.choice(odd)
            setattr(matrix, name, array)
        elif matrix.format == "lil":
            matrix.rows[rng.randrange(len(matrix.rows))].append(rng.choice(odd))
        elif matrix.format == "dia":
            matrix.offsets = matrix.offsets.copy()
            matrix.offsets[rng.randrange(len(matrix.offsets))] = rng.choice((-100, 100, 3))


def is_sound(matrix: Any) -> bool:
    """Whether all indices of a matrix are inside its shape, entry by entry."""
    n, m = matrix.shape
    if matrix.format in ("csr", "csc", "bsr"):
        data, indices, indptr = matrix.data, matrix.indices, matrix.indptr
        if indices.dtype not in (np.int32, np.int64) or indptr.dtype not in (np.int32, np.int64):
            return False
        lines, inside = (n, m) if matrix.format != "csc" else (m, n)
        if matrix.format == "bsr":
            lines, inside = n // data.shape[1], m // data.shape[2]
        ends = [int(p) for p in indptr]
        if len(ends) != lines + 1 or ends[0] != 0 or ends != sorted(ends) or ends[-1] > len(indices):
            return False
        return len(data) == len(indices) and all(0 <= int(i) < inside for i in indices[: ends[-1]])
    if matrix.format == "coo":
        return all(0 <= i < n for i in matrix.row.tolist()) and all(0 <= j < m for j in matrix.col.tolist())
    if matrix.format == "lil":
        lists = zip(matrix.rows, matrix.data, strict=True)
        return all(len(c) == len(v) and all(0 <= j < m for j in c) for c, v in lists)
    return True  # of diagonals, those outside are left out


def not_numbers(matrix: Any) -> bool:
    """Whether the values of a sound matrix may be refused for what they are."""
    return matrix.format == "dia"


# -- files


def base_files(X: Any, y: Any) -> dict[str, bytes]:
    """Return a sound file of every format, by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    def archive(compressed: bool, **arrays: Any) -> bytes:
        buffer = io.BytesIO()
        (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
        return buffer.getvalue()

    def packed(matrix: Any, compressed: bool) -> bytes:
        buffer = io.BytesIO()
        sparse.save_npz(buffer, matrix, compressed=compressed)
        return buffer.getvalue()

    npy = io.BytesIO()
    np.save(npy, X)
    table = pa.table({"vector": X.tolist(), "label": [[f"l{i}", "all"] for i in y.tolist()]})
    texts = pa.table({"text": ["one", "two", "three"], "label": ["a", "b", "a"]})
    parquet, arrow, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, texts.schema) as writer:
        writer.write_table(texts)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    csr = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0))
    plain = {
        "xmc": XMC,
        "libsvm": LIBSVM,
        "csv": CSV,
        "tsv": TSV,
        "fasttext": FASTTEXT,
        "lines": LINES,
        "npy": npy.getvalue(),
        "npz": archive(False, X=X, y=y),
        "packed_npz": archive(True, X=X, y=y.astype(str)),
        "sparse_npz": packed(csr, False),
        "packed_sparse_npz": packed(csr.tocsc(), True),
        "parquet": parquet.getvalue(),
        "arrow": arrow.getvalue(),
    }
    checked = zstandard.ZstdCompressor(write_checksum=True).compress
    return plain | {
        "xmc.gz": gzip.compress(XMC),
        "csv.xz": lzma.compress(CSV),
        "lines.zst": checked(LINES),
        "npy.gz": gzip.compress(plain["npy"]),
        "libsvm.zst": checked(LIBSVM),
    }


FORMATS = {name: name for name in ("xmc", "libsvm", "csv", "tsv", "fasttext", "lines")} | {
    "xmc.gz": "xmc",
    "csv.xz": "csv",
    "lines.zst": "lines",
    "libsvm.zst": "libsvm",
}


def load(data: bytes, name: str, folder: Path) -> Any:
    """Return the dataset of a sound file."""
    path = folder / name
    path.write_bytes(data)
    return load_dataset(path, format=FORMATS.get(name, "auto"))  # type: ignore[arg-type]


def change_bytes(rng: random.Random, files: dict[str, bytes], name: str) -> bytes:
    """Flip, cut, repeat, insert or splice bytes of a file."""
    data = bytearray(files[name])
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        kind, place = rng.randrange(6), rng.randrange(len(data) + 1)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data = data[:place]
        elif kind == 2:
            data[place:place] = rng.choice(TOKENS)
        elif kind == 3:
            data[place : place + rng.randrange(8)] = rng.choice(TOKENS)
        elif kind == 4:
            other = files[rng.choice(sorted(files))]
            start = rng.randrange(len(other))
            data[place:place] = other[start : start + rng.randrange(40)]
        else:
            data[place:place] = data[place : place + rng.randrange(30)]
    return bytes(data)


def craft_npy(rng: random.Random, X: Any, y: Any) -> bytes:
    """Return an array with a header of its own."""
    text = rng.choice(HEADERS)
    text = (text % rng.choice(SHAPES) if "%s" in text else text).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    body = rng.choice((X[:2, :3].tobytes(), b"", b"\xff" * 24, X.tobytes()))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + text + body


def craft_npz(rng: random.Random, X: Any, y: Any) -> bytes:
    """Return an archive of crafted arrays, with checksums that are right."""
    arrays: dict[str, Any] = {"X": X, "y": y}
    if rng.random() < 0.6:
        csr = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0))
        matrix = csr if rng.random() < 0.5 else csr.tocsc()
        arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        arrays |= {"shape": np.array(matrix.shape), "format": np.array(matrix.format.encode())}
    for _ in range(rng.choice((1, 2))):
        name = rng.choice(sorted(arrays))
        array = np.array(arrays[name])
        kind = rng.random()
        if kind < 0.5 and array.dtype.kind in "if" and array.size:
            flat = array.reshape(-1)
            flat[rng.randrange(flat.size)] = rng.choice((-1, 0, 1, 7, 100, 2**31 - 1, -(2**31)))
        elif kind < 0.6:
            array = array[:-1] if array.ndim else array
        elif kind < 0.7:
            array = (
                array.astype(rng.choice(("f8", "i8", "u1", "S5", "U5", "c8", "M8[s]")), copy=True)
                if array.dtype.kind in "iuf"
                else array
            )
        elif kind < 0.8:
            array = array[None]
        elif kind < 0.9:
            array = np.array(rng.choice((b"csc", b"coo", b"bsr", b"dia", "csr", b"\xff", 3)))
        else:
            arrays.pop(name)
            continue
        arrays[name] = array
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array)
            data = member.getvalue() if rng.random() < 0.9 else craft_npy(rng, X, y)
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def craft_xmc(rng: random.Random, X: Any, y: Any) -> bytes:
    """Return lines of labels and features with numbers of any size."""
    numbers = (
        "0",
        "1",
        "3",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967297",
        "99999999999",
        "-1",
        "007",
    )
    head = " ".join(rng.choice((*numbers[:3], *numbers)) for _ in range(3))
    lines = [head if rng.random() < 0.5 else f"2 {rng.choice(numbers)} {rng.choice(numbers)}"]
    for _ in range(2):
        labels = ",".join(rng.choice(numbers) for _ in range(rng.randrange(3)))
        lines.append(
            labels
            + "".join(f" {rng.choice(numbers)}:{rng.choice(('1', '0.5', '1e39', '-2'))}" for _ in range(2))
        )
    return "\n".join(lines).encode() + b"\n"


def craft_libsvm(rng: random.Random, X: Any, y: Any) -> bytes:
    """Return the same without a first line of sizes."""
    return craft_xmc(rng, X, y).partition(b"\n")[2]


CRAFTED: dict[str, Callable[[random.Random, Any, Any], bytes]] = {
    "npy": craft_npy,
    "npz": craft_npz,
    "packed_npz": craft_npz,
    "sparse_npz": craft_npz,
    "xmc": craft_xmc,
    "libsvm": craft_libsvm,
}


def check_dataset(data: Any) -> None:
    """Check what a reader returns: sizes that agree, indices inside."""
    if data.X is not None:
        require(data.X.ndim == 2, "features are no table")
        if sparse.issparse(data.X):
            require(is_sound(data.X), "features lead outside")
        elif data.X.size:
            float(
                np.asarray(data.X).astype(np.complex128).real.sum()
            )  # every page of a mapped file can be read
    if data.y is not None:
        require(data.y.shape[0] == data.n_samples, "labels of another number of rows")
        if sparse.issparse(data.y):
            require(is_sound(data.y), "labels lead outside")
        else:
            data.y.tolist()


def same(found: Any, expected: Any) -> bool:
    """Whether two datasets hold the same."""
    if (found.texts, found.format) != (expected.texts, expected.format):
        return False
    for one, two in ((found.X, expected.X), (found.y, expected.y)):
        if (one is None) != (two is None):
            return False
        if one is not None:
            one, two = (part.toarray() if sparse.issparse(part) else np.asarray(part) for part in (one, two))
            if not np.array_equal(one, two):
                return False
    return True


def check_sparse_text(data: bytes, found: Any, *, header: bool, skip: bool) -> None:
    """Compare features with those that a plain reader finds, where no line was skipped."""
    if found.n_skipped or skip:
        return
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    n_features = int(lines[0].split()[1]) if header else None
    expected = []
    for line in lines[1 if header else 0 :]:
        words = line.partition(b"#")[0].split()
        if not words and (not header or line.startswith(b"#")):
            continue
        pairs = [word.split(b":") for word in words if b":" in word]
        row: dict[int, float] = {}
        for index, value in pairs:
            row[int(index)] = row.get(int(index), 0.0) + float(np.float32(float(value)))
        expected.append(row)
    X = found.X.tocsr()
    if header:
        require(X.shape[1] == n_features, "another number of features than announced")
        expected = expected[: X.shape[0]] + [row for row in expected[X.shape[0] :] if row]
    smallest = min((index for row in expected for index in row), default=0)
    shift = 1 if not header and smallest >= 1 else 0
    require(len(expected) == X.shape[0], "another number of rows")
    for i, row in enumerate(expected):
        part = slice(X.indptr[i], X.indptr[i + 1])
        got = dict(zip((X.indices[part] + shift).tolist(), X.data[part].tolist(), strict=True))
        require(sorted(got) == sorted(row), "other columns than in the file")
        close = all(abs(got[j] - v) <= 1e-5 * abs(v) + 1e-37 for j, v in row.items())
        require(close, "other values than in the file")
