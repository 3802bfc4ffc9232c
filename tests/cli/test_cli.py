"""The command line application: help, version, error messages, exit codes, pipes, files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from extremax.cli import main, terminal
from extremax.cli.app import app, build

RUN = [sys.executable, "-m", "extremax"]


def _application_that(command: object) -> typer.Typer:
    made = build()
    made.command("misbehave")(command)  # type: ignore[arg-type]
    return made


def test_help_needs_no_heavy_module() -> None:
    code = "import sys; sys.argv = ['extremax', '--help']\n"
    code += "from extremax.cli import main\ntry:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "extremax.cli.app" in loaded
    assert not {
        "numpy",
        "scipy",
        "sklearn",
        "numba",
        "torch",
        "matplotlib",
        "pandas",
        "pyarrow",
        "rich.table",
    } & set(loaded)


def test_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.stdout.startswith("extremax ")


def test_shell_completion_knows_options_and_commands() -> None:
    environment = {
        **os.environ,
        "_EXTREMAX_COMPLETE": "complete_bash",
        "COMP_WORDS": "extremax --ver",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(RUN, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["--version"]


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("x is 3; use 2."), 1, "extremax: x is 3; use 2.\n"),
        (TypeError("y is a set."), 1, "extremax: y is a set.\n"),
        (
            FileNotFoundError(2, "No such file or directory", "data.csv"),
            1,
            "extremax: data.csv: No such file or directory.\n",
        ),
        (ImportError("needs pyarrow: pip install extremax[parquet]."), 1, "extremax: needs pyarrow"),
        (KeyboardInterrupt(), 130, "extremax: interrupted.\n"),
        (typer.BadParameter("--a and --b exclude each other."), 2, "--a and --b exclude each other."),
    ],
)
def test_user_error_is_one_sentence_rejects(error: BaseException, code: int, sentence: str) -> None:
    def misbehave() -> None:
        raise error

    done = CliRunner().invoke(_application_that(misbehave), ["misbehave"])
    assert done.exit_code == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_error_of_the_program_is_not_hidden() -> None:
    def misbehave() -> None:
        raise RuntimeError("a fault of ours")

    done = CliRunner().invoke(_application_that(misbehave), ["misbehave"])
    assert isinstance(done.exception, RuntimeError)


def test_traceback_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def misbehave() -> None:
        raise ValueError("x is 3.")

    monkeypatch.setenv("EXTREMAX_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(_application_that(misbehave), ["misbehave"]).exception, ValueError)


def test_warning_is_one_sentence() -> None:
    def misbehave() -> None:
        warnings.warn("3 rows are left out.", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = CliRunner().invoke(_application_that(misbehave), ["misbehave"])
    assert done.exit_code == 0
    assert done.stderr == "warning: 3 rows are left out.\n"


def test_unknown_command_is_wrong_usage_rejects() -> None:
    done = subprocess.run([*RUN, "trian"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_typer_names_the_extra_rejects() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom extremax.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "extremax: the command line needs typer: pip install extremax[cli]\n"


COUNT = """
import sys
from extremax.cli.app import build
from extremax.cli import terminal
made = build()
@made.command()
def count(end: int):
    for i in range(end): terminal.write(str(i))
made(['count', sys.argv[1]])
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("n_lines", [1, 10**6])
def test_full_disk_is_named(n_lines: int) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", COUNT, str(n_lines)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "extremax: standard output: No space left on device.\n"
    assert done.returncode == 1


def test_pipe_closed_early_ends_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COUNT, str(10**6)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "0\n"
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait() == 141


IMPORTS = """
import importlib.abc, os, signal, sys

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.{number})
            except BaseException as error:  # as modules of C do
                raise ImportError("cannot import") from error

sys.meta_path.insert(0, Slow())
sys.argv = ["extremax", "train", "data.csv", "--out", "model"]
from extremax.cli import main
main()
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("typer", "SIGINT"),
        ("extremax.cli.train", "SIGINT"),
        ("numpy", "SIGINT"),
        ("sklearn.base", "SIGINT"),
        ("sklearn.base", "SIGTERM"),
    ],
)
def test_interrupt_during_imports_leaves_no_traceback(name: str, number: str) -> None:
    code = IMPORTS.format(name=name, number=number)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "extremax: interrupted.\n")


@pytest.mark.small
def test_interrupt_that_was_kept_back_during_an_import_does_not_lose_the_model(tmp_path: Path) -> None:
    (tmp_path / "keeps_its_frame.py").write_text("import sys\nframe = sys._getframe()\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom extremax.cli import signals\n"
    code += "import keeps_its_frame\n"
    code += "try:\n    signals._interrupt(2, keeps_its_frame.frame)\n"
    code += "except KeyboardInterrupt:\n    print('saved')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("saved\n", 0)


def test_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with terminal.atomic_file(path) as file:
            file.write(b"half of the ne")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.csv"]
    with terminal.atomic_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_pipes_devices_and_links_stay_what_they_are(tmp_path: Path) -> None:
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with terminal.atomic_file(pipe) as out:
        out.write(b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    link.symlink_to(file)
    for content in (b"first", b"second"):
        with terminal.atomic_file(link) as out:
            out.write(content)
        assert file.read_bytes() == content
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_json({"loss": float("nan"), "labels": ("a", 2)})
    assert capsys.readouterr().out == '{\n  "loss": null,\n  "labels": [\n    "a",\n    2\n  ]\n}\n'


def test_table_in_a_pipe_is_tab_separated(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(["code", "p"], [["a\tb", "0.5"]], title="Answers")
    assert capsys.readouterr().out == "code\tp\na b\t0.5\n"


@pytest.mark.small
def test_control_characters_are_escaped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "a\x1b[2Jb\x9bc\u202ed"
    terminal.write(label)
    assert capsys.readouterr().out == label + "\n"  # a pipe gets what there is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = r"a\u001b[2Jb\u009bc\u202ed"
    terminal.write(label)
    terminal.warn(label)
    terminal.print_table(["label"], [[label + "\ne"]], title="[bold]")
    with terminal.atomic_file(None) as file:
        file.write(f"{label}\n".encode())
    said = capsys.readouterr()
    lines = [line.strip() for line in said.out.splitlines()]
    assert lines[0] == lines[-1] == shown
    assert shown + r"\ne" in lines
    assert any("[bold]" in line for line in lines)
    assert said.err == f"warning: {shown}\n"
    assert not [code for code in ("\x1b[2J", "\x9b", "\u202e") if code in said.out + said.err]


@pytest.mark.small
def test_probabilities_have_one_form() -> None:
    from extremax.cli.predict import decimal

    assert [terminal.fraction(p) for p in (0.5, 0.99999, 3e-5, 0.0)] == [
        "0.5000",
        "1.0000",
        "<0.0001",
        "0.0000",
    ]
    assert [decimal(p) for p in (0.5, 1.5e-12, 0.1234567)] == ["0.5", "0.0000000000015", "0.1234567"]


def test_a_call_of_main_leaves_ctrl_c_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["extremax", "--version"])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        main()
    assert signal.getsignal(signal.SIGINT) is before
