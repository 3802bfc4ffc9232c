"""The pages in a real browser: what they show, the keyboard, telephones, colours, and no outside requests."""

from __future__ import annotations

import csv
import io
import re
import runpy
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from browser.conftest import PATIENCE
from browser.site import ORIGIN, Site
from extremax import TextClassifier, analyse
from extremax.report import ModelPage, make_document, write_report
from report.stand_in import StandIn

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "take_pictures.py"))
HOSTILE = "<img src=x onerror=window.hacked=1>"
VERBS = ("bitten", "fell", "hit", "cut", "burnt", "stung")
THINGS = ("dog", "roof", "car", "knife", HOSTILE)


def rows(seed, n=400):
    rng = np.random.default_rng(seed)
    verbs, things = rng.choice(VERBS, n).tolist(), rng.choice(THINGS, n).tolist()
    fillers = rng.choice(["was ", "got ", ""], n).tolist()
    texts = [f"{a}{b} by a {c}" for a, b, c in zip(fillers, verbs, things, strict=True)]
    return texts, [f"{b} {c}" for b, c in zip(verbs, things, strict=True)]


@pytest.fixture(scope="session")
def made():
    clf = TextClassifier().fit(*rows(0))
    clf.describe_classes([f"description of {label}" for label in clf.classes_])
    texts, labels = rows(1, 200)
    labels[::20] = [labels[0]] * len(labels[::20])
    document = make_document(clf, analyse(clf, texts, labels))
    return clf, ModelPage(clf, document)


@pytest.fixture
def site(made):
    found = Site(*made)
    yield found
    assert found.outside == []


def shares(page):
    return page.eval_on_selector_all(".answers .fill", "found => found.map(f => parseFloat(f.style.width))")


# -- the first page ----------------------------------------------------------------------------------------


def test_labels_and_reasons_as_one_types(open_page, site):
    page = open_page(ORIGIN, route=site.route)
    page.wait_for_selector("#text")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # keys of a quick writer, on a machine of any speed
    page.type("#text", "Bitten by a dog")
    page.clock.run_for(119)
    page.wait_for_timeout(50)
    assert [path for path, _ in site.requests if path == "/explain"] == []
    page.clock.run_for(1)
    page.wait_for_selector(".answers li")
    assert page.text_content(".answers li:first-child .label") == "bitten dog"
    assert page.text_content(".answers li:first-child .what") == "description of bitten dog"
    found = site.clf.explain("Bitten by a dog", k=5)
    np.testing.assert_allclose(shares(page), 100 * np.array(found.probabilities), atol=0.01)
    assert [path for path, _ in site.requests if path == "/explain"] == ["/explain"]  # for fifteen keys

    words = dict(found.difference.words)
    marks = page.eval_on_selector_all(".marked mark", "m => m.map(x => [x.textContent, x.title])")
    assert [word for word, _ in marks] == ["Bitten", "by", "a", "dog"]
    for word, title in marks:
        assert float(title.replace("−", "-")) == pytest.approx(words[word.lower()], abs=0.006)
    assert page.text_content(".marked") == "Bitten by a dog"
    page.select_option("[aria-label='Rather than']", "")  # its score alone
    assert mark_of(page, 3) == pytest.approx(dict(found.score.words)["dog"], abs=0.006)
    assert "how common the class is" in page.text_content(".terms >> nth=0")
    page.select_option("select[aria-label=Why]", "2")  # any answer, and any two of them
    second, third = (dict(part.words)["dog"] for part in found.against[:2])
    assert mark_of(page, 3) == pytest.approx(dict(found.score.words)["dog"] - third, abs=0.006)
    page.select_option("[aria-label='Rather than']", "1")
    assert mark_of(page, 3) == pytest.approx(second - third, abs=0.006)

    path = page.eval_on_selector_all("[aria-label^='Place'] li", "found => found.map(f => f.textContent)")
    assert path[0] == "all classes"
    assert path[-1] == "bitten dog"


def mark_of(page, number):
    return float(page.get_attribute(f".marked mark >> nth={number}", "title").split()[-1].replace("−", "-"))


def test_links_examples_and_unknown_words(open_page, site):
    site.examples = ["fell by a roof", "cut by a knife"]
    page = open_page(f"{ORIGIN}/?q=bitten+by+a+zebra", route=site.route)
    page.wait_for_selector(".answers li")
    assert page.input_value("#text") == "bitten by a zebra"
    assert "No training text has zebra." in page.text_content("section[aria-label=Why]")
    assert page.text_content(".marked .unknown") == "zebra"
    found = site.clf.explain("bitten by a zebra", k=5)
    assert found.unknown_words == ["zebra"]
    page.click(".examples button >> nth=0")
    page.wait_for_selector(".answers li:first-child .label:text-is('fell roof')")
    assert page.url.endswith("?q=fell+by+a+roof")
    second = site.clf.explain("fell by a roof", k=2)
    words = second.unmatched_words[1]
    assert {"fell", "roof"} & set(words)
    sentence = f"Not matched by description of {second.runner_up}: {', '.join(words)}."
    assert sentence in page.text_content("section[aria-label=Why]")


def test_late_answers_are_dropped(open_page, site):
    site.hold = {"bitten by a dog"}
    page = open_page(ORIGIN, route=site.route)
    page.fill("#text", "bitten by a dog")
    deadline = time.monotonic() + PATIENCE / 1000
    while "bitten by a dog" not in site.held:
        assert time.monotonic() < deadline
        page.wait_for_timeout(10)
    page.fill("#text", "fell by a roof")
    page.wait_for_selector(".answers li")
    site.hold = set()
    site.release("bitten by a dog")
    page.wait_for_timeout(200)
    assert page.text_content(".answers li:first-child .label") == "fell roof"
    page.fill("#text", "   ")
    page.wait_for_selector(".answers li", state="detached")
    assert page.query_selector(".marked") is None


def test_unknown_text_says_so_and_hostile_labels_are_text(open_page, site):
    page = open_page(ORIGIN, route=site.route)
    page.fill("#text", f"cut by a {HOSTILE}")
    page.wait_for_selector(".answers li")
    assert page.text_content(".answers li:first-child .label") == f"cut {HOSTILE}"
    assert page.text_content(".marked") == f"cut by a {HOSTILE}"
    page.fill("#text", "ΩΩΩΩ")
    page.wait_for_selector("#answers .note")
    assert "No word of this text is known" in page.text_content("#answers")
    assert page.query_selector("img") is None
    assert page.evaluate("window.hacked") is None


def test_column_of_texts_becomes_a_table_to_download(open_page, site):
    texts = [
        "bitten by a dog",
        "=HYPERLINK(1)+cut by a knife",
        'stung by a "car"',
        "-1+1 hit",
        "fell by a roof, twice",
    ]
    page = open_page(ORIGIN, route=site.route)
    page.click("text=Many texts")
    assert not page.is_visible("#text")
    page.fill("#texts", "\n".join(texts[:2]) + "\n\n" + "\n".join(texts[2:]))
    page.click("text=Classify")
    page.wait_for_selector("text=5 texts classified.")
    sizes = [len(body["inputs"]) for path, body in site.requests if path == "/predict"]
    assert sizes == [3, 2]  # the server takes three
    cells = page.eval_on_selector_all("#table tbody tr", "found => found.map(f => f.cells[0].textContent)")
    assert cells == texts
    with page.expect_download() as download:
        page.click("text=Download CSV")
    with open(download.value.path(), encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(io.StringIO(file.read())))
    labels, log_prob = site.clf.predict_topk(texts, k=2)
    assert [row["label"] for row in table] == labels[:, 0].tolist()
    assert [row["text"] for row in table] == [texts[0], "'" + texts[1], texts[2], "'" + texts[3], texts[4]]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in table], np.exp(log_prob[:, 0]), rtol=1e-6
    )


def test_errors_of_the_server_are_shown(open_page, site):
    page = open_page(ORIGIN, route=site.route)
    page.wait_for_selector("#text")
    site.explain = lambda query, body: (_ for _ in ()).throw(ValueError("This text is too long."))
    page.fill("#text", "bitten")
    page.wait_for_selector("[role=alert]")
    assert page.text_content("[role=alert]") == "This text is too long."


def test_key_is_asked_for(open_page, site):
    site.key = "secret"
    page = open_page(ORIGIN, route=site.route)
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=did not accept that key")
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#text")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_page_of_a_named_model_asks_that_model(open_page, site):
    page = open_page(f"{ORIGIN}/?model=a%20b", route=site.route)
    page.wait_for_selector("#text")
    assert site.requests[0][0] == "/models/a%20b/info"
    assert page.get_attribute("nav a >> nth=1", "href") == "model?model=a%20b"


def test_rows_of_numbers_for_a_model_of_vectors(open_page):
    clf = StandIn(np.eye(4, dtype=np.float32) * 9, labels=list("abcd"))
    clf.predict_topk = lambda X, k: (clf.classes_[(found := clf.model_.topk(np.float32(X), k))[0]], found[1])
    site = Site(clf, ModelPage(clf))
    page = open_page(ORIGIN, route=site.route)
    page.fill("#text", "0, 0, 1, 0")
    page.wait_for_selector(".answers li")
    assert page.text_content(".answers li:first-child .label") == "c"
    page.fill("#text", "0, no, 1, 0")
    page.wait_for_selector("[role=alert]")
    assert "separated by commas" in page.text_content("[role=alert]")


# -- the page of the model ---------------------------------------------------------------------------------


def cells(page):
    """Nodes on the screen: number -> left, top, width in pixels."""
    found = page.eval_on_selector_all(
        ".cell",
        "c => c.map(x => [x, x.getBoundingClientRect()])"
        ".map(([x, r]) => [Number(x.dataset.node), r.left, r.top, r.width])",
    )
    return {int(number): place for number, *place in found}


def open_model(open_page, site, **options):
    page = open_page(f"{ORIGIN}/model", route=site.route, reduced_motion="reduce", **options)
    page.wait_for_selector(".cell")
    return page


def test_widths_are_rows_and_colours_accuracies(open_page, site):
    page = open_model(open_page, site)
    places = cells(page)
    _, _, whole = places[0]
    for number, (_, _, width) in places.items():
        node = site.page.node(number)
        assert width == pytest.approx(whole * node["n_rows"] / site.page.node(0)["n_rows"], abs=1.5)
        assert node["name"] in page.get_attribute(f"[data-node='{number}']", "aria-label")
    for number in places:
        colour = page.eval_on_selector(f"[data-node='{number}']", "c => c.style.backgroundColor")
        accuracy = site.page.node(number)["accuracy"]
        expected = "" if accuracy is None else page.evaluate(f"xm.colour({accuracy})").replace(",", ", ")
        assert colour == expected


def test_clicks_and_keys_go_through_the_tree(open_page, site):
    page = open_model(open_page, site)
    left, right = site.page.children(0)
    page.click(f"[data-node='{right}']")
    whole = cells(page)[right][2]
    assert whole == pytest.approx(page.eval_on_selector(".icicle", "b => b.clientWidth"), abs=2)
    assert left not in cells(page)
    page.click(".path button")  # the root
    assert {0, left, right} <= set(cells(page))

    page.focus(".cell[tabindex='0']")
    current = "Number(document.activeElement.dataset.node)"
    for key, expected in (
        *(("ArrowDown", left), ("ArrowRight", right), ("ArrowLeft", left), ("ArrowUp", 0)),
        *(("ArrowDown", left), ("Enter", left), ("ArrowDown", site.page.children(left)[0])),
        *(("Backspace", 0), ("ArrowDown", left)),
    ):
        page.keyboard.press(key)
        page.wait_for_function(f"{current} === {expected}")
        assert page.eval_on_selector_all(".cell[tabindex='0']", "c => c.length") == 1
    assert f"{site.page.node(left)['n_classes']} classes" in page.text_content("#facts")


def test_search_shows_a_label(open_page, site):
    page = open_model(open_page, site)
    page.fill("#find", "burnt")
    page.wait_for_selector("#hits li >> nth=4")
    hits = page.eval_on_selector_all("#hits .label", "found => found.map(f => f.textContent)")
    assert sorted(hits) == sorted(f"burnt {thing}" for thing in THINGS)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell.found")
    number = int(page.get_attribute(".cell.found", "data-node"))
    assert site.page.node(number)["label"] == hits[1]
    assert hits[1] in page.text_content("#facts")
    page.fill("#find", "nowhere")
    page.wait_for_selector("text=No label with this text.")
    address = page.url
    assert address.endswith(f"#node={number}")
    again = open_model(open_page, site)
    again.goto(address)
    again.reload()
    again.wait_for_selector(".cell.found")
    assert int(again.get_attribute(".cell.found", "data-node")) == number


def test_tables_of_the_page_are_those_of_the_analysis(open_page, site):
    page = open_model(open_page, site)
    overview = site.page.overview()
    tables = overview["tables"]
    accuracy = tables["figures"]["rows"][0]["accuracy"]
    assert page.text_content(".tile .value") == page.evaluate(f"xm.percent({accuracy})")
    for name, table, limit in (
        ("Accuracy by class frequency", "deciles", 99),
        ("Most confused pairs", "confusions", 10),
        ("Rows to check", "suspects", 10),
    ):
        shown = page.query_selector_all(f"section[aria-label='{name}'] tbody tr")
        assert len(shown) == min(limit, len(tables[table]["rows"])) > 0
    points = [row for row in tables["reliability"]["rows"] if row["n"]]
    assert len(page.query_selector_all("circle.point")) == len(points)
    first = tables["confusions"]["rows"][0]
    page.click("section[aria-label='Most confused pairs'] summary >> nth=0")
    assert first["examples"][0]["text"] in page.text_content("ul.texts >> nth=0")
    assert page.query_selector("img") is None
    assert page.evaluate("window.hacked") is None


def test_many_classes_are_loaded_on_demand(open_page):
    n_classes = 30_000
    clf = StandIn(
        np.random.default_rng(0).normal(size=(n_classes, 5)), [f"class {i}" for i in range(n_classes)]
    )
    site = Site(clf, ModelPage(clf))
    page = open_model(open_page, site)
    assert len(cells(page)) < 400
    assert "There are no held-out figures" in page.text_content("main")
    before = len(site.requests)
    assert before <= 4
    page.fill("#find", "class 12345")
    page.wait_for_selector("#hits .label")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell.found")
    assert page.text_content("#facts").startswith("class 12345")
    assert len(cells(page)) < 400
    down = site.page.children(0)[0]
    page.focus(".cell[tabindex='0']")
    page.keyboard.press("Home")
    page.wait_for_function("Number(document.activeElement.dataset.node) === 0")
    asked = len(site.requests)
    page.click(f"[data-node='{down}']")
    page.wait_for_function(
        f"document.querySelector('.path [aria-current]').textContent === {site.page.node(down)['name']!r}"
    )
    assert len(site.requests) <= asked + 1


def test_report_opens_from_disk_without_a_server(open_page, made, tmp_path):
    clf, pages = made
    path = tmp_path / "report.html"
    write_report(clf, pages.document, path, title=HOSTILE)
    asked = []
    page = open_page(path.as_uri(), reduced_motion="reduce")
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_selector(".cell")
    assert asked == [path.as_uri()]
    assert page.text_content("h1") == HOSTILE
    assert page.query_selector("img") is None
    assert page.evaluate("window.hacked") is None
    right = pages.children(0)[1]
    page.click(f"[data-node='{right}']")
    assert right in cells(page)
    page.fill("#find", "burnt")
    page.wait_for_selector("#hits .label")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell.found")
    assert len(page.query_selector_all("section[aria-label='Most confused pairs'] tbody tr")) > 0
    # the policy stops scripts that are not in the file
    stopped = page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        " document.body.append(s); return window.hacked === undefined; }"
    )
    assert stopped
    open_page.problems[:] = [text for text in open_page.problems if "Content Security Policy" not in text]


def test_report_says_how_much_of_a_large_tree_is_left_out(open_page, tmp_path):
    n_classes = 5000
    clf = StandIn(
        np.random.default_rng(0).normal(size=(n_classes, 5)), [f"class {i}" for i in range(n_classes)]
    )
    path = tmp_path / "report.html"
    write_report(clf, None, path, max_nodes=60)
    assert path.stat().st_size < 200_000
    page = open_page(path.as_uri(), reduced_motion="reduce")
    page.wait_for_selector(".cell")
    page.click(".cell >> nth=-1")
    assert re.search(r"Its \d+ classes are not in this file", page.text_content("#facts"))


def test_pictures_for_the_documentation(browser, made, tmp_path):
    text = "bitten by a dog"
    found = TOOL["take_pictures"](browser, *made, tmp_path, text=text, branch_of=text, title="Model")
    assert [path.name for path in found] == ["answer.png", "label-tree.png", "report.png"]
    for path in found:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert path.stat().st_size > 15_000  # an empty page has 5 kB


def test_answer_stands_in_a_file_of_its_own(open_page, made, tmp_path):
    clf, pages = made
    text = f"cut by a {HOSTILE}"
    (tmp_path / "answer.html").write_text(TOOL["answer_html"](clf, pages, text), encoding="utf-8")
    page = open_page((tmp_path / "answer.html").as_uri())
    page.wait_for_selector(".marked mark")
    assert page.text_content(".answers li:first-child .label") == f"cut {HOSTILE}"
    assert page.input_value("#text") == text
    assert page.query_selector("img") is None


# -- for everybody -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/model"])
def test_telephone_has_no_sideways_scrolling(open_page, site, path):
    page = open_page(ORIGIN + path, route=site.route, width=375, height=700, has_touch=True)
    if path == "/":
        page.fill("#text", "bitten by a dog " + "x" * 200)
        page.wait_for_selector(".marked")
        page.click("text=Many texts")
        page.fill("#texts", "y" * 300)
        page.click("text=Classify")
        page.wait_for_selector("#table table")
        page.click("text=One text")
    else:
        page.wait_for_selector(".cell")
        assert page.eval_on_selector(".cell", "c => c.getBoundingClientRect().height") >= 44
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    small = page.eval_on_selector_all(
        "button:not(.path button), input, textarea, select",
        "f => f.filter(x => x.offsetParent && x.getBoundingClientRect().height < 31).map(x => x.outerHTML)",
    )
    assert small == []


CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const worst = [];
  const texts = "p, td, th, h1, h2, h3, a, button, span.label, .desc, .tile div, .cell:not(.none) span";
  for (const node of document.querySelectorAll(texts)) {
    if (!node.textContent.trim() || !node.offsetParent) continue;
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
    worst.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 80)]);
  }
  return worst.sort((x, y) => x[0] - y[0])[0];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/model"])
def test_texts_can_be_read_in_light_and_dark(open_page, site, scheme, path):
    page = open_page(ORIGIN + path, route=site.route, color_scheme=scheme, reduced_motion="reduce")
    if path == "/":
        page.fill("#text", "bitten by a dog")
        page.wait_for_selector(".marked")
    else:
        page.wait_for_selector(".cell")
    red, green, blue = map(
        int, re.findall(r"\d+", page.eval_on_selector("body", "b => getComputedStyle(b).backgroundColor"))[:3]
    )
    assert (red + green + blue > 600) == (scheme == "light")
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where


def test_everything_has_a_name_and_can_be_reached(open_page, site):
    for path, wanted in (("/", "#text"), ("/model", ".cell")):
        page = open_page(ORIGIN + path, route=site.route)
        page.wait_for_selector(wanted)
        nameless = page.eval_on_selector_all(
            "button, a, input, textarea, select, [role=treeitem], [role=img], [role=region]",
            "f => f.filter(x => !(x.getAttribute('aria-label') || x.textContent.trim()"
            " || (x.labels && x.labels.length))).map(x => x.outerHTML)",
        )
        assert nameless == []
        reached = set()
        page.evaluate("document.activeElement.blur()")
        for _ in range(25):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("(x => x.id || x.className || x.tagName)(document.activeElement)"))
        assert {"/": "text", "/model": "cell"}[path] in {name.split(" ")[0] for name in reached}
        assert page.get_attribute("html", "lang") == "en"
        assert page.title()


def test_scale_stays_in_order_for_the_colour_blind(open_page, site):
    """Lightness falls along the scale, so that it needs no hue."""
    page = open_page(ORIGIN, route=site.route)
    page.wait_for_selector("#text")
    light = [
        0.299 * r + 0.587 * g + 0.114 * b
        for r, g, b in page.evaluate("Array.from({length: 21}, (_, i) => xm.rgb(i / 20))")
    ]
    assert all(a > b + 2 for a, b in pairwise(light))
