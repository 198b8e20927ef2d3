"""The page of a diagnosis: read as text, and opened in a browser where there is one."""

import base64
import re
import shlex
import shutil
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import diagnoses
import pytest

from weince_lightning.diagnostics.figures import draw
from weince_lightning.diagnostics.page import FIRST, SECTIONS, render_page
from weince_lightning.diagnostics.verdict import pronounce
from weince_lightning.figures import DARK, LIGHT

NASTY = "<script>alert('x')</script> & \"a\" $headline.npy"
VOID = {"meta", "link", "source", "img"}


class Outline(HTMLParser):
    """What a page consists of; fails where an element is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.elements = [], []
        self.texts = {}
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(diagnosis, source="embeddings.npy"):
    return render_page(diagnosis, pronounce(diagnosis, source), draw(diagnosis), source)


@pytest.fixture(scope="module")
def page():
    return page_of(diagnoses.pairs())


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def test_the_page_is_one_document_with_language_title_and_viewport(page, outline):
    assert page.startswith("<!DOCTYPE html>\n")
    assert outline.all("html") == [{"lang": "en"}]
    assert outline.texts["title"] == ["Tail diagnosis of embeddings.npy"]
    (viewport,) = [each for each in outline.all("meta") if each.get("name") == "viewport"]
    assert viewport["content"] == "width=device-width, initial-scale=1"
    assert len(page.encode()) < 3e6


def test_the_verdict_comes_first_and_whole(outline):
    verdict = pronounce(diagnoses.pairs(), "embeddings.npy")
    assert outline.texts["h1"] == [verdict.answer.capitalize()]
    assert outline.texts["p"][:3] == [
        "Is WEINCE worth trying for embeddings.npy?",
        verdict.why[:1].upper() + verdict.why[1:],
        f"Next: {verdict.next} ({verdict.purpose})",
    ]
    assert outline.texts["code"] == [verdict.next]
    tags = [tag for tag, _ in outline.elements]
    assert tags.index("h1") < tags.index("figure") < tags.index("ul")
    assert outline.texts["li"] == verdict.findings
    assert len(verdict.findings) > 3


def test_sections_follow_each_other_and_no_heading_is_skipped(outline):
    assert outline.texts["h2"] == [
        "Do the hardest negatives stop early?", *SECTIONS, "What it rests on", "Numbers",
        "How it was computed",
    ]  # fmt: skip
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in zip([0, *levels], levels, strict=False))


def figures_shown():
    return [FIRST, *(name for names in SECTIONS.values() for name in names)]


def test_each_picture_is_there_in_light_and_dark_with_its_words(outline):
    pictures = draw(diagnoses.pairs())
    order = figures_shown()
    assert set(order) < set(pictures)
    assert [figure["id"] for figure in outline.all("figure")] == order
    assert outline.texts["h3"] == [pictures[name].question for name in order[1:]]
    assert outline.texts["figcaption"] == [pictures[name].caption for name in order]
    columns = (order, outline.all("img"), outline.all("source"))
    for name, light, dark in zip(*columns, strict=True):
        assert light["alt"] == pictures[name].alt
        assert dark["media"] == "(prefers-color-scheme: dark)"
        for address, is_dark in ((light["src"], False), (dark["srcset"], True)):
            kind, content = address.split(",")
            assert kind == "data:image/svg+xml;base64"
            if name in ("link", FIRST):
                assert base64.b64decode(content) == pictures[name].render("svg", is_dark)


def test_nothing_points_elsewhere_and_nothing_runs(page, outline):
    assert not {"script", "iframe", "object", "form", "a"} & set(outline.texts)
    for tag, attributes in outline.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "data:").startswith("data:"), tag
    assert "url(" not in page
    assert "@import" not in page
    (policy,) = [each for each in outline.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")


@pytest.fixture(scope="module")
def lacking():
    """A page with few figures, and a name from outside."""
    return page_of(diagnoses.three(), NASTY)


def test_a_name_from_outside_is_text(lacking):
    outline = Outline(lacking)
    assert "script" not in outline.texts
    assert outline.texts["title"] == [f"Tail diagnosis of {NASTY}"]
    assert outline.texts["p"][0] == f"Is WEINCE worth trying for {NASTY}?"
    assert outline.texts["code"][0] == f"weince diagnose {shlex.quote(NASTY)}"


def rows_of(page, heading):
    """Rows of the table under a heading: value by name."""
    (part,) = re.findall(rf"<h2>{heading}</h2>.*?</section>", page, flags=re.DOTALL)
    rows = re.findall(r'<th scope="row">(.*?)<span.*?<td>(.*?)</td>', part, flags=re.DOTALL)
    assert rows
    assert max(Counter(name for name, _ in rows).values()) == 1
    return {unescape(name): unescape(value) for name, value in rows}


def test_the_table_holds_the_main_numbers(page):
    diagnosis = diagnoses.pairs()
    numbers, rows = diagnosis.numbers(), rows_of(page, "Numbers")
    threshold, link = numbers["threshold"], numbers["link"]
    assert rows["ξ"] == f"{threshold['xi']:.3f}"
    assert rows["95 % interval of ξ"] == "{:.3f} to {:.3f}".format(*threshold["xi_interval"])
    assert rows["σ"] == f"{threshold['sigma']:.4f}"
    assert rows["endpoint"] == f"{threshold['endpoint']:.3f}"
    assert rows["exceedances"] == f"{threshold['num_exceedances']:,}"
    assert rows["p, goodness of fit"] == f"{threshold['goodness_p']:.3f}"
    null = numbers["nulls"]["gaussian"]
    expected = "{:.3f} ({:.3f} to {:.3f})".format(null["xi"], *null["xi_range"])
    assert rows["ξ of Gaussian scores"] == expected
    assert rows["λ of the link"] == f"{link['lambda_hat']:.3f}"
    assert rows["its 95 % interval"] == "{:.3f} to {:.3f}".format(*link["lambda_interval"])


def test_what_tells_nothing_of_the_data_stays_in_the_files_beside_the_page(page):
    """Δ AIC and the gate's λ come out alike for any tail."""
    assert "AIC" not in page
    assert "gate" not in rows_of(page, "Numbers")
    assert "Also in figures/: evidence, exceedances, gate, mean_excess, quantiles." in page


def test_the_page_says_how_it_was_computed(page):
    diagnosis = diagnoses.pairs()
    rows = rows_of(page, "How it was computed")
    assert rows["samples"] == "256"
    assert rows["dimension"] == "16"
    assert rows["positives"] == "views"
    assert rows["similarities"] == f"{diagnosis.pooled.tail.num_scores:,}"
    assert rows["anchors"] == f"{len(diagnosis.anchors.gate):,}"
    assert rows["quantile"] == "0.99"
    assert rows["temperature τ"] == "0.5"
    assert rows["seed"] == "0"


def test_what_is_not_drawn_is_named_with_the_reason(page, lacking):
    assert "Not drawn" not in page
    outline = Outline(lacking)
    assert "Not drawn: hardest, link, stability" in lacking
    (note,) = [text for text in outline.texts["p"] if "Not drawn" in text]
    assert "none lies above the threshold" in note
    assert "no positives are known" in note
    assert outline.texts["h2"][0] == "What the losses do with them"
    assert rows_of(lacking, "Numbers")["ξ"] == "none"


# From here on in a browser.

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    paths = [path for path in map(shutil.which, BROWSERS) if path]
    if not paths:
        pytest.skip(f"no Chromium is installed: none of {', '.join(BROWSERS)} is found")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=paths[0])
        yield opened
        opened.close()


def look(browser, file, width, scheme):
    """Open a page as on a device: the tab, its requests and its complaints."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, is_mobile=width < 600
    )
    tab = context.new_page()
    requests, complaints = [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(file.as_uri())
    return tab, requests, complaints


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "diagnosis.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.slow
def test_a_browser_shows_all_of_the_page_on_any_device(browser, file, width, scheme):
    tab, requests, complaints = look(browser, file, width, scheme)
    try:
        images = tab.locator("img").all()
        assert len(images) == len(figures_shown())
        first = images[0].bounding_box()
        assert first["y"] + first["height"] < 800  # on the first screen
        for image in images:
            image.evaluate("image => image.decode()")
            assert image.evaluate("image => image.naturalWidth") > 0
            assert image.is_visible()
            assert image.get_attribute("alt")
            box = image.bounding_box()
            assert 250 < box["width"] <= width - box["x"]
            shown = image.evaluate("image => [image.currentSrc, image.src]")
            assert (shown[0] == shown[1]) == (scheme == "light")
        # Nothing but tables may be wider than the screen, and those scroll inside themselves.
        assert tab.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
        assert tab.locator("table").count() == 2
        back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        wanted = (LIGHT if scheme == "light" else DARK).background
        assert back == "rgb({}, {}, {})".format(*bytes.fromhex(wanted[1:]))
        assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
        assert not complaints
    finally:
        tab.context.close()


@pytest.mark.slow
def test_a_long_name_makes_no_page_wider_than_a_telephone(browser, tmp_path):
    path = tmp_path / "long.html"
    path.write_text(page_of(diagnoses.three(), "e" * 300 + NASTY), encoding="utf-8")
    tab, _, complaints = look(browser, path, 320, "light")
    assert tab.evaluate("document.documentElement.scrollWidth") == 320
    assert not complaints
    tab.context.close()
