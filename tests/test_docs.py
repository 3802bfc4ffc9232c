"""The documentation keeps its word: code runs from top to bottom of a page, output is as printed, commands
and files exist.
"""

from __future__ import annotations

import ast
import configparser
import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer

import extremax

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "lab").glob("*.md"))]
# Other processors round otherwise in matrix products; a figure that training arrives at may move. Output with
# such figures has this line above it; all other output is compared to the last digit.
MARK = re.compile(r"<!-- figures of training: within (\d+)% -->\n+")


class Block(NamedTuple):
    language: str
    text: str
    tolerance: float = 0.0


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(
        rf"^((?:{MARK.pattern})?)```(\w*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return [Block(language, text, int(percent or 0) / 100) for _, percent, language, text in found]


def outside_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]


def same_output(printed: str, promised: str, tolerance: float = 0.0) -> bool:
    """Words alike, and numbers to the last digit, or close where that is allowed."""
    if tolerance == 0.0:
        return printed.split() == promised.split()
    number = r"-?\d+(?:\.\d+)?"
    if re.sub(number, "#", printed).split() != re.sub(number, "#", promised).split():
        return False
    pairs = zip(re.findall(number, printed), re.findall(number, promised), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=tolerance) for a, b in pairs)


def _check_tutorial(names: dict[str, Any]) -> None:
    assert names["labels"][0, 0] == "W54"  # contact with dog
    assert names["report"].accuracy[1] > 10 * names["frequency_accuracy"] > 0.0
    assert names["frequency_accuracy"] < 0.02
    assert names["report"].n_left_out > 0


def _check_embeddings(names: dict[str, Any]) -> None:
    assert names["labels"].shape == names["log_prob"].shape == (1_000, 5)
    assert names["accuracy"] > 0.3
    assert names["stream"].choices_["solver"] == "minibatch_softmax"
    assert names["stream"].score(names["X_test"], names["y_test"]) > 0.2


def _check_multilabel(names: dict[str, Any]) -> None:
    assert names["report"].precision[1] > 0.8
    assert 1.0 <= np.mean([len(row) for row in names["chosen"]]) <= 3.0


def _check_fast_prediction(names: dict[str, Any]) -> None:
    assert names["agreement"] > 0.9


def _check_calibration(names: dict[str, Any]) -> None:
    assert names["after"].log_likelihood >= names["before"].log_likelihood - 0.02  # chosen on other rows
    assert names["before"].accuracy == names["after"].accuracy


def _check_noise(names: dict[str, Any]) -> None:
    X, y = names["data"].X_test, names["data"].y_test
    assert names["hard"].log_likelihood(X, y) > names["uniform"].log_likelihood(X, y)
    assert names["default"].log_likelihood(X, y) > names["uniform"].log_likelihood(X, y)
    with pytest.raises(TypeError, match="cannot be saved"):
        names["clf"].save("own-noise")


def _check_pytorch(names: dict[str, Any]) -> None:
    """Untrained, the loss is that of 500 classes, 6.2, and the perplexity 400."""
    assert names["evaluate"](names["model"], names["X_test"], names["y_test"]) < 4.0
    assert names["hits"] > 0.6
    assert names["perplexity"] < 8.0


def _check_experiments(names: dict[str, Any]) -> None:
    assert Path("curve.png").stat().st_size > 10_000


def _check_changing_classes(names: dict[str, Any]) -> None:
    assert names["added"] > 0.3
    assert Path("model/README.md").exists()


def _check_readme(names: dict[str, Any]) -> None:
    assert names["labels"].shape == names["log_prob"].shape == (1_000, 5)
    assert names["accuracy"] > 0.3
    np.testing.assert_array_equal(names["labels"][:, 0], names["clf"].predict(names["data"].X_test))
    assert Path("model/header.json").exists()


# What must be true of the names that a page leaves behind.
CHECKS = {
    "README.md": _check_readme,
    "docs/tutorial.md": _check_tutorial,
    "docs/howto/embeddings.md": _check_embeddings,
    "docs/howto/multilabel.md": _check_multilabel,
    "docs/howto/fast-prediction.md": _check_fast_prediction,
    "docs/howto/calibration.md": _check_calibration,
    "docs/howto/noise.md": _check_noise,
    "docs/howto/pytorch.md": _check_pytorch,
    "docs/howto/experiments.md": _check_experiments,
    "docs/howto/changing-classes.md": _check_changing_classes,
}


def test_no_block_goes_unseen() -> None:
    """Every fence is one that the tests read, output stands under its code, and no command hides in an
    indent.
    """
    for page in PAGES:
        text, blocks = page.read_text(), blocks_of(page)
        assert len(re.findall(r"^\s*(?:```|~~~)", text, flags=re.MULTILINE)) == 2 * len(blocks), page
        languages = [block.language for block in blocks]
        assert set(languages) <= {"python", "bash", "toml", "ini", "text"}, page
        assert all(
            i > 0 and languages[i - 1] in ("python", "bash")
            for i, language in enumerate(languages)
            if language == "text"
        ), page
        marks = len(MARK.findall(text))
        assert marks == sum(block.tolerance > 0 and block.language == "text" for block in blocks), page
        for block in blocks:  # a figure in a comment would be compared with nothing
            if block.language in ("python", "bash"):
                assert not re.search(r"#.*\d(?:\.\d|%)", block.text), (page, block.text)
        assert not re.search(
            r"^    (?:extremax|python|pip|make|import|from) ", outside_blocks(text), flags=re.MULTILINE
        ), page


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "toml" for b in blocks_of(p))], ids=name_of
)
def test_recipes_can_be_read(page: Path, tmp_path: Path) -> None:
    from extremax.experiments import load_recipe

    first, *more = [block.text for block in blocks_of(page) if block.language == "toml"]
    for text in (first, *(first + other for other in more)):  # later ones are tables to be added
        (tmp_path / "recipe.toml").write_text(text)
        assert load_recipe(tmp_path / "recipe.toml").data.name


def test_projects_of_annif_can_be_read() -> None:
    """They have what Annif asks for, and the commands under them name one of them."""
    blocks = blocks_of(DOCS / "howto" / "other-programs.md")
    (text,) = [block.text for block in blocks if block.language == "ini"]
    projects = configparser.ConfigParser()
    projects.read_string(text)
    for name in projects.sections():
        assert {"name", "language", "backend", "vocab"} <= projects[name].keys(), name
    shell = "".join(block.text for block in blocks if block.language == "bash")
    named = re.findall(r"^annif-extremax (?:train|eval) (\S+)", shell, flags=re.MULTILINE)
    assert {projects[name]["backend"] for name in named} == {"extremax"}


def test_checks_belong_to_pages() -> None:
    assert CHECKS.keys() <= {name_of(page) for page in WITH_PYTHON}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's optimisers, once per process
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "pytorch":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXTREMAX_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "docs"}
    blocks = blocks_of(page)
    for i, block in enumerate(blocks):
        if block.language == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block.text, f"{page.name}, block {i + 1}", "exec"), names)
            following = blocks[i + 1] if i + 1 < len(blocks) else Block("", "")
            if following.language == "text":
                assert same_output(printed.getvalue(), following.text, following.tolerance), (
                    printed.getvalue()
                )
    if name_of(page) in CHECKS:
        CHECKS[name_of(page)](names)


def commands_of(text: str) -> list[list[str]]:
    """Words of every ``extremax ...`` command, pipes taken apart."""
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    found = []
    for words in lines:
        while "|" in words:
            cut = words.index("|")
            found.append(words[:cut])
            words = words[cut + 1 :]
        found.append(words)
    return [words[1:] for words in found if words[:1] == ["extremax"]]


@pytest.fixture(scope="module")
def application() -> Any:
    from extremax.cli.app import app

    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return group  # type: ignore[return-value]


def options_of(command: Any) -> set[str]:
    return {"--help", "-h", *(name for p in command.params for name in (*p.opts, *p.secondary_opts))}


def faults_of(words: list[str], application: Any) -> list[str]:
    """Commands and options that do not exist."""
    if words[0].startswith("-"):
        return [word for word in words if word not in options_of(application) | {"--install-completion"}]
    if words[0] not in application.commands:
        return [f"extremax {words[0]}"]
    known = options_of(application.commands[words[0]])
    named = [word.split("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)]
    return [f"extremax {words[0]} {option}" for option in named if option not in known]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page: Path, application: Any) -> None:
    inline = re.findall(r"`(extremax [^`]+)`", outside_blocks(page.read_text()))
    shell = [block.text for block in blocks_of(page) if block.language == "bash"]
    for words in commands_of("\n".join([*shell, *inline])):
        assert not faults_of(words, application), words
        if words[0] in ("run", "tune"):
            from extremax.experiments.recipe import find_recipe

            recipe = words[1]
            assert (ROOT / recipe).exists() or find_recipe(recipe)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            found = page.parent / target if target else page
            assert found.exists(), link
            assert not anchor or found.suffix != ".md" or anchor in anchors_of(found), link


def anchors_of(page: Path) -> set[str]:
    """Anchors that Markdown makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", outside_blocks(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:src|docs|lab|examples|benchmarks|recipes|tests)/[\w./-]*)`", page.read_text()
    ):
        assert (ROOT / path).exists(), path


def test_the_method_names_modules_that_exist() -> None:
    rows = [line for line in (DOCS / "method.md").read_text().splitlines() if line.startswith("| ")]
    cells = [line.split("|")[2] for line in rows]
    modules = re.findall(r"`(?:src/extremax/)?([a-z_/]+\.py)`", " ".join(cells))
    assert len(modules) > 15
    for module in modules:
        assert (ROOT / "src" / "extremax" / module).exists() or (ROOT / module).exists(), module
    named = re.findall(r"`([a-z_/]+\.py)` \(((?:`\w+`(?:, )?)+)\)", " ".join(cells))
    assert len(named) > 20
    for module, names in named:
        defined = {
            node.name for node in parsed(ROOT / "src" / "extremax" / module).body if hasattr(node, "name")
        }
        assert set(re.findall(r"\w+", names)) <= defined, (module, names)
    for number in range(1, 17):  # the main text has so many; the appendix derives two of them
        assert re.search(rf"\b(?:Eq\.|and) {number}\b", " ".join(rows)), number


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("package", ["", "data", "experiments", "nn"])
def test_the_api_reference_has_every_public_name(package: str) -> None:
    folder = ROOT / "src" / "extremax" / package
    shown = set(re.findall(r"^::: (\S+)", (DOCS / "api.md").read_text(), flags=re.MULTILINE))
    imports = [node for node in ast.walk(parsed(folder / "__init__.py")) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    module = parsed(folder / "__init__.py")
    public = next(
        n.value for n in module.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    )
    listed = ast.literal_eval(public) if package else extremax.__all__  # the whole package makes its list
    # constants are for the package itself
    names = [name for name in listed if not name.isupper()]
    assert len(names) >= 2
    for name in names:
        home = homes[name]
        if home == "extremax.tree":
            home = "extremax.tree.label_tree"
        assert home in shown or f"{home}.{name}" in shown, f"{home}.{name}"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).as_posix()
        assert f" {path}\n" in menu, path


def test_prose_states_the_numbers_of_the_defaults() -> None:
    """Where pages say from which size on something is done, they say what the code does."""
    from extremax.tuned import DEFAULTS

    sparse, recall = DEFAULTS.sparse, DEFAULTS.pq.target_recall
    columns = rf"at\s+least\s+{sparse.min_features:,}\s+columns"
    density = rf"(?:at\s+most|more\s+than)\s+{sparse.max_density:.0%}\s+of\s+non-zero"
    n_columns = n_density = 0
    for page in PAGES:
        text = outside_blocks(page.read_text())
        n_columns += len(re.findall(columns, text))
        n_density += len(re.findall(density, text))
        assert len(re.findall(r"at\s+least\s+[\d,]+\s+columns", text)) == len(re.findall(columns, text)), page
        said = re.findall(r"(?:at\s+most|more\s+than)\s+[\d.]+%\s+of\s+non-zero", text)
        assert len(said) == len(re.findall(density, text)), page
    assert min(n_columns, n_density) >= 2
    assert f"{recall:.1%} of some held-out rows" in (DOCS / "howto" / "fast-prediction.md").read_text()
