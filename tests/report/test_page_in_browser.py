"""The matrix's page in headless Chromium: what a user sees, clicks and types. Skipped where there is no browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import NARROW, Page, needs_browser
from support.receipts import BREAK, HOLDING, OLD, OTHER_BREAK, RECOMPILE, WORSENED, a_receipt, an_entry

from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.matrix import Matrix, matrix
from pytest_compilecontract.facts.measurement import Measurement, StepOperators
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.report.page import page

pytestmark = needs_browser

TORCHES = ("2.11.0", "2.13.0", "2.15.0")
HOSTILE = "tests/test_x.py::test_</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202e"
LONG = f"tests/test_long.py::test_{'very_long_' * 400}end"


def lanes(contract: str, worse: Measurement, lane: str = "aot") -> list[Entry]:
    """One lane in each environment: it holds, holds, and is `worse` in the last."""
    entry = an_entry(contract=contract, lane=lane, test=f"{contract}[{lane}]")
    return [entry, entry, replace(entry, measurement=worse)]


def a_matrix() -> Matrix:
    broken = an_entry(None, contract="tests/test_c.py::test_crash", verdict="broken", reason="the test failed: no")
    rows = [
        lanes("tests/test_a.py::test_one", WORSENED["recompiles"]),
        lanes("tests/test_a.py::test_one", HOLDING, "inductor"),
        lanes("tests/test_a.py::test_two", replace(HOLDING, graph_breaks=(BREAK, OTHER_BREAK))),
        lanes("tests/test_b.py::test_three", HOLDING),
        [*lanes("tests/test_c.py::test_crash", HOLDING)[:2], broken],
        lanes(HOSTILE, WORSENED["numerics"]),
        lanes(LONG, WORSENED["capture"]),
    ]
    return of_rows(rows, TORCHES)


def of_rows(rows: list[list[Entry]], torches: tuple[str, ...]) -> Matrix:
    return matrix(
        [
            a_receipt(*(row[at] for row in rows), environment=replace(OLD, torch=torch))
            for at, torch in enumerate(torches)
        ]
    )


def write(found: Matrix, path: Path) -> str:
    text = page(found, answer(found.comparisons[-1]), plugin="0.1.0", created="2026-01-31 12:00 UTC")
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


class MatrixPage(Page):
    """The matrix in a browser."""

    def rows(self) -> list[str]:
        """The lanes that are shown, as "test_one [aot]"."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll('.lane-row')].map((row) => "
            "`${row.querySelector('.name').textContent} [${row.querySelector('.lane').textContent}]`)"
        )
        return found

    def chip(self, group: str, text: str) -> None:
        next(each for each in self.all(f"#{group} .chip") if text in each.text).click()

    def focused(self) -> str:
        """What has the focus: "row.column" of a cell, else its id or its text."""
        found: str = self.js(
            "const at = document.activeElement; "
            "return at.dataset.row ? `${at.dataset.row}.${at.dataset.column}` : at.id || at.textContent"
        )
        return found

    @property
    def detail(self) -> str:
        text: str = self.one("#detail").text if self.js("return document.getElementById('detail').open") else ""
        return text


@pytest.fixture
def browser(quiet_driver: Any) -> MatrixPage:
    return MatrixPage(quiet_driver)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(a_matrix(), tmp_path_factory.mktemp("page") / "matrix.html")


def test_what_held_everywhere_is_folded_and_can_be_unfolded(browser: MatrixPage, url: str) -> None:
    browser.open(url)
    folded = browser.rows()
    status = browser.one("#status").text

    browser.one("#fold").click()
    unfolded = browser.rows()

    assert status == "5 lanes of 7 shown, 2 that held everywhere folded"
    assert [row for row in unfolded if row not in folded] == ["test_one [inductor]", "test_three [aot]"]
    assert browser.one("#fold").get_attribute("aria-expanded") == "true"
    assert browser.focused() == "fold"


def test_the_first_two_rows_say_what_could_be_installed_and_imported(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    assert [row.text for row in browser.all("tr.setup")] == [
        "installed ✓ yes ✓ yes ✓ yes",
        "imported ✓ yes ✓ yes ✓ yes",
    ]


def test_a_verdict_filters(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    browser.chip("verdicts", "broken")
    broken = browser.rows()
    browser.chip("verdicts", "broken")
    browser.chip("verdicts", "held")

    assert broken == ["test_crash [aot]"]
    assert len(browser.rows()) == 7  # each of them held somewhere


def test_a_lane_filters(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    browser.js(
        "const lane = document.getElementById('lane'); lane.value = 'inductor'; lane.dispatchEvent(new Event('change'))"
    )

    assert browser.rows() == []
    assert browser.one("#fold").text == "Show 1 lane that held everywhere"


def test_an_environment_is_hidden_and_its_verdicts_with_it(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    browser.chip("columns", "2.15.0")

    assert [each.text.splitlines()[0] for each in browser.all("#matrix thead th")] == [
        "Lane",
        "torch 2.11.0",
        "torch 2.13.0",
    ]
    assert browser.rows() == []  # what is left held
    assert browser.one("#clear").is_displayed()


def test_text_filters_by_contract_lane_and_fact(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    browser.search("breaks 0→2")
    by_fact = browser.rows()
    browser.search("test_three")
    by_contract = browser.rows()
    browser.search("nothing like it")

    assert (by_fact, by_contract) == (["test_two [aot]"], ["test_three [aot]"])
    assert browser.rows() == []
    assert "No lane matches the filter." in browser.one("#matrix").text


def test_a_filter_is_kept_in_the_address_and_cleared(browser: MatrixPage, url: str) -> None:
    browser.open(url)
    browser.chip("verdicts", "drifted")
    address = browser.driver.current_url

    browser.open(address)
    kept = browser.rows()
    browser.one("#clear").click()
    cleared = browser.rows(), browser.driver.current_url
    browser.open(f"{url}#cell=2.2")
    opened = browser.detail

    assert "test_two [aot]" in opened
    assert address.endswith("#verdict=drifted")
    assert kept == [row for row in cleared[0] if "crash" not in row]
    assert cleared[1] == url


def test_a_cell_opens_by_mouse_with_both_measurements_and_the_facts_that_differ(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    browser.one(".lane-row:nth-of-type(4) .v-drifted").click()

    row = browser.one(".sides tr.worse:has(.facts)")
    before, after = row.find_elements("css selector", "td")
    assert "test_two [aot]" in browser.detail
    assert "torch 2.11.0 → torch 2.15.0" in browser.detail
    assert (before.text, after.text.splitlines()[:3]) == (
        "0",
        ["2", "+", "model.py:41 in forward"],
    )
    assert row.find_element("css selector", "th").text == "≠ graph breaks\nworse, judged"
    assert "pytest --compile-contracts --contract-lanes=aot -- 'tests/test_a.py::test_two[aot]'" in browser.detail


def test_an_opened_cell_tells_the_cause_first_and_counts_facts_that_are_the_same(
    browser: MatrixPage, tmp_path: Path
) -> None:
    worse = replace(WORSENED["graph_breaks"], recompiles=(RECOMPILE,) * 3)
    browser.open(write(of_rows([lanes("tests/test_a.py::test_two", worse)], TORCHES), tmp_path / "matrix.html"))
    browser.one(".lane-row .v-drifted").click()

    told = browser.js("return [...document.querySelectorAll('#detail li > strong')].map((each) => each.textContent)")
    rows = {
        each.find_element("css selector", "th").text.split("\n")[0]: each.find_elements("css selector", "td")
        for each in browser.all(".sides tr.worse")
    }

    assert told[:3] == ["graph breaks 0 -> 1", "recompiles 0 -> 3", "fullgraph yes -> no"]
    assert [each.text.split("\n")[0] for each in rows["\u2260 recompiles"]] == ["0", "3"]


def test_only_what_differs_can_be_asked_for(browser: MatrixPage, url: str) -> None:
    browser.open(url)
    browser.one(".lane-row:nth-of-type(3) .v-drifted").click()
    every = len([row for row in browser.all(".sides tbody tr") if row.is_displayed()])

    browser.one("#only").click()

    shown = [
        row.find_element("css selector", "th").text for row in browser.all(".sides tbody tr") if row.is_displayed()
    ]
    assert every > 15
    assert shown == ["≠ recompiles\nworse, judged"]


def test_the_command_to_rerun_is_copied(browser: MatrixPage, url: str) -> None:
    browser.open(url)
    browser.one(".lane-row:nth-of-type(3) .v-drifted").click()
    button = browser.one(".rerun button")

    button.click()

    browser.until(lambda: button.text == "Copied")


def test_the_keyboard_reaches_a_cell_opens_it_and_comes_back(browser: MatrixPage, url: str) -> None:
    from selenium.webdriver import Keys

    browser.open(url)

    browser.press("/")
    at_search = browser.focused()
    browser.js("document.querySelector('#columns .chip:last-child').focus()")
    browser.press(Keys.TAB)
    stops = browser.js("return document.querySelectorAll(\".cell[tabindex='0']\").length")
    path = [browser.focused()]
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.END, Keys.ARROW_UP, Keys.HOME, Keys.PAGE_DOWN, Keys.ARROW_DOWN):
        browser.press(key)
        path.append(browser.focused())
    browser.press(Keys.END, Keys.ENTER)
    opened, inside = browser.detail, browser.focused()
    browser.press(Keys.ESCAPE)

    assert at_search == "text"
    assert stops == 1
    # Rows 1 and 3 of the data held everywhere, and are folded.
    assert path == ["0.0", "0.1", "2.1", "2.2", "0.2", "0.0", "6.0", "6.0"]
    assert "numeric differences 0 -> 1" in opened
    assert inside == "Close"
    assert browser.detail == ""
    assert browser.focused() == "6.2"


def test_a_hostile_name_is_text(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    row = next(row for row in browser.all(".lane-row") if "owned" in row.text)
    row.find_element("css selector", ".v-drifted").click()

    assert r"onerror=alert(1)>\u202e [aot]" in browser.detail
    assert "document.title='owned'" in browser.detail
    assert browser.driver.title == "Compile contracts: torch 2.11.0 to torch 2.15.0"
    assert browser.js("return [document.scripts.length, document.images.length]") == [2, 0]


def test_a_script_that_found_its_way_in_would_not_run(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    refused = browser.js(
        "try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(1)>'); return '' } "
        "catch (error) { return error.name }"
    )

    assert refused == "TypeError"
    # The console says so, as it should.
    assert [each for each in browser.driver.get_log("browser") if "TrustedHTML" not in each["message"]] == []


def test_a_very_long_name_stays_in_its_place(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    row = next(row for row in browser.all(".lane-row") if "very_" in row.text)

    assert row.size["height"] < 160
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: MatrixPage, url: str) -> None:
    browser.open(url, NARROW)

    widths = browser.js("return [document.documentElement.scrollWidth, document.getElementById('main').scrollWidth]")
    cell = browser.one(".lane-row .v-drifted")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", cell)
    label = browser.js("return getComputedStyle(arguments[0].closest('td'), '::before').content", cell)
    cell.click()
    detail = browser.js("const it = document.getElementById('detail'); return [it.scrollWidth, it.clientWidth]")

    assert max(widths) <= NARROW[0]
    assert label == '"torch 2.15.0"'
    assert "test_one [aot]" in browser.detail
    assert detail[0] <= detail[1] <= NARROW[0]


SHOWN = (".v-held", ".v-drifted", ".v-broken", ".muted", ".fact", ".path", ".chip")


def test_dark_and_light_follow_the_system_and_the_button(browser: MatrixPage, url: str) -> None:
    def background() -> str:
        return str(browser.js("return getComputedStyle(document.body).backgroundColor"))

    browser.open(url, scheme="dark")
    dark, dark_contrasts = background(), browser.contrasts(*SHOWN)
    browser.open(url, scheme="light")
    light, light_contrasts = background(), browser.contrasts(*SHOWN)
    for _ in range(2):
        browser.one("#theme").click()
    chosen = background()
    browser.one("#theme").click()

    assert (light, dark) == ("rgb(250, 249, 247)", "rgb(20, 23, 27)")
    assert chosen == dark
    assert background() == light
    assert min(*dark_contrasts, *light_contrasts) >= 4.5


def test_the_three_lists_are_below(browser: MatrixPage, url: str) -> None:
    browser.open(url)

    lists = browser.all(".told")
    one = next(each for each in lists if "test_one [aot]" in each.text)
    assert [each.text for each in one.find_elements("css selector", "dt")] == ["Validated default", "Still-open risk"]
    assert "torch 2.15.0, A processor: drifted: recompiles 0→1: x size at index 0" in one.text
    assert len(lists) == 5


def test_printing_shows_every_row(browser: MatrixPage, tmp_path: Path) -> None:
    rows = [lanes(f"tests/test_a.py::test_{number:03}", WORSENED["recompiles"]) for number in range(400)]
    browser.open(write(of_rows(rows, TORCHES), tmp_path / "matrix.html"))
    drawn = len(browser.rows())

    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {})

    assert drawn < 400
    assert len(browser.rows()) == 400
    assert len(printed["data"]) > 10_000


def test_3000_lanes_in_6_environments_stay_quick(browser: MatrixPage, tmp_path: Path) -> None:
    torches = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
    rows = []
    for number in range(3000):
        worse = HOLDING if number % 10 else WORSENED["recompiles"]
        entry = an_entry(
            replace(HOLDING, ops_captured=100 + number), contract=f"tests/test_{number // 40}.py::test_{number}"
        )
        rows.append([entry] * 5 + [replace(entry, measurement=replace(worse, ops_captured=100 + number))])
    path = tmp_path / "matrix.html"
    url = write(of_rows(rows, torches), path)

    browser.open(url)
    loaded = browser.js("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    took = browser.js("""
        const started = performance.now();
        const chip = (text) => [...document.querySelectorAll('.chip')].find((each) => each.textContent.includes(text));
        chip('drifted').click();
        document.body.offsetHeight;
        const filtered = performance.now();
        document.getElementById('clear').click();
        document.getElementById('fold').click();
        document.body.offsetHeight;
        return [filtered - started, performance.now() - filtered];
    """)

    assert path.stat().st_size < 4_000_000
    assert len(browser.rows()) < 600  # the others as they are scrolled to
    # A tenth of it on a machine that does nothing else.
    assert loaded < 5000
    assert max(took) < 2000


# Over releases


def over_releases(name: str = "tests/test_a.py::test_one") -> list[list[Entry]]:
    """A lane of whose measures some move, and one of which none does."""
    slow = replace(
        HOLDING, cold_seconds=4.0, graphs=2, graph_breaks=(BREAK,), operators_run=StepOperators(compiled=9, eager=7)
    )
    moving = lanes(name, replace(slow, graphs=3))
    moving[1] = replace(moving[1], measurement=slow, repeats=3, spread={"cold_seconds": (3.5, 4.25)})
    return [moving, lanes("tests/test_b.py::test_steady", HOLDING)]


def heat(browser: MatrixPage) -> list[str]:
    return [" ".join(row.text.split()) for row in browser.all("#heat tbody tr")]


def strips(browser: MatrixPage) -> dict[str, str]:
    """What each strip says, by lane and measure; values that are not as those before have a star."""
    found: dict[str, str] = browser.js("""
        const told = {};
        for (const lane of document.querySelectorAll('.told-strip')) {
            for (const strip of lane.querySelectorAll('.strip')) {
                const values = [...strip.querySelectorAll('li')].map((each) =>
                    each.querySelector('.value').firstChild.textContent + (each.className ? '*' : '')
                    + (each.querySelector('.spread') ? ` ${each.querySelector('.spread').textContent}` : ''));
                const name = `${lane.querySelector('h3').textContent} ${strip.querySelector('h4').textContent}`;
                told[name] = values.join(', ');
            }
        }
        return told;
    """)
    return found


@pytest.fixture
def releases(browser: MatrixPage, tmp_path: Path) -> MatrixPage:
    browser.open(write(of_rows(over_releases(), TORCHES), tmp_path / "matrix.html"))
    browser.one("#views [data-view=releases]").click()
    return browser


def test_a_map_has_every_lane_by_one_measure(releases: MatrixPage) -> None:
    breaks = heat(releases)
    releases.one("#metrics [data-metric='4']").click()

    assert breaks == ["tests/test_a.py", "test_one aot 0 1 ▲ 1", "tests/test_b.py", "test_steady aot 0 0 0"]
    assert heat(releases) == ["tests/test_a.py", "test_one aot 1 4 ▲ 4", "tests/test_b.py", "test_steady aot 1 1 1"]
    assert "not judged" in releases.one("#legend").text
    assert "2 in all, 2 -> 5 s (+150 %) in 2 lanes" in releases.one("#legend").text
    assert not releases.one("#matrix").is_displayed()
    assert not releases.one("#lists").is_displayed()


def test_a_lane_has_a_strip_of_each_measure(releases: MatrixPage) -> None:
    one = "tests/test_a.py::test_one [aot]"

    found = strips(releases)

    assert found[f"{one} graphs"] == "1, 2*, 3*"
    assert found[f"{one} graph breaks"] == "0, 1*, 1"
    assert found[f"{one} recompiles"] == "0, 0, 0"
    assert found[f"{one} eager operators"] == "0, 7*, 7"
    assert found[f"{one} first-call seconds"] == "1, 4* 3.5\u20134.25, 4"
    tall = releases.js(
        "return [...document.querySelectorAll('.strip .bar i')].slice(0, 3).map((each) => each.style.height)"
    )
    assert [round(float(each.rstrip("%"))) for each in tall] == [33, 67, 100]


def test_only_lanes_that_changed_and_what_is_chosen_is_in_the_address(releases: MatrixPage) -> None:
    releases.one("#changed").click()
    changed = heat(releases)
    url = releases.driver.current_url
    releases.open(url)
    again = heat(releases)
    releases.chip("columns", "2.11.0")
    releases.chip("columns", "2.13.0")

    assert changed == again == ["tests/test_a.py", "test_one aot 0 1 ▲ 1"]
    assert releases.one("#status").text == "0 lanes of 2 shown"
    assert heat(releases) == ["No lane matches the filter."]


def test_a_cell_of_the_map_opens_the_two_sides(releases: MatrixPage) -> None:
    releases.one(".heat-cell[data-row='0'][data-column='2']").click()

    assert "torch 2.11.0 → torch 2.15.0" in releases.detail
    assert "graph breaks 0 -> 1" in releases.detail


def test_hostile_names_are_text_over_releases_too(browser: MatrixPage, tmp_path: Path) -> None:
    rows = [*over_releases(HOSTILE), lanes(LONG, WORSENED["graph_breaks"])]
    found = of_rows(rows, (TORCHES[0], "<b>2.13</b>\u202e", TORCHES[2]))
    for size in (NARROW, (1400, 900)):
        browser.open(f"{write(found, tmp_path / 'matrix.html')}#view=releases", size)

        assert browser.driver.title == "Compile contracts: torch 2.11.0 to torch 2.15.0"
        assert browser.js("return document.querySelectorAll('#releases :is(b, img, script)').length") == 0
        assert "test_</script><script>" in browser.one("#heat").text
        # Nothing of the page is wider than the window.
        assert browser.js("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_can_be_read(browser: MatrixPage, tmp_path: Path, scheme: str) -> None:
    rows = [lanes(f"tests/test_a.py::test_{count}", replace(HOLDING, graphs=count), "aot") for count in range(6)]
    browser.open(f"{write(of_rows(rows, TORCHES), tmp_path / 'm.html')}#view=releases&measure=graphs", scheme=scheme)

    levels = [f".heat-cell.l{level}" for level in range(6)]

    assert all(browser.all(each) for each in levels)
    # Of a mixed colour the browser says "color(srgb r g b)", from 0 to 1.
    contrasts = browser.js(
        """
        const parts = (text) => text.match(/[\\d.]+/g).map((c) => Number(c) * (text.startsWith('color') ? 255 : 1));
        const light = (text) => parts(text).slice(0, 3).map((c) => c / 255)
            .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
            .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
        return arguments[0].map((each) => {
            const style = getComputedStyle(document.querySelector(each));
            const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        });
        """,
        levels,
    )
    assert min(contrasts) >= 4.5, contrasts


def test_hundreds_of_lanes_over_releases_are_there_at_once(browser: MatrixPage, tmp_path: Path) -> None:
    rows = [lanes(f"tests/test_{number // 20}.py::test_{number}", HOLDING) for number in range(500)]
    browser.open(f"{write(of_rows(rows, TORCHES), tmp_path / 'm.html')}#view=releases")

    assert len(browser.all(".heat-cell")) == 3 * 400
    browser.one("#more-heat").click()
    assert len(browser.all(".heat-cell")) == 3 * 500
    assert len(browser.all(".told-strip")) == 24


def test_a_cell_shows_how_the_graphs_of_both_sides_differ(browser: MatrixPage, tmp_path: Path) -> None:
    lane = ("tests/test_a.py::test_one", "aot")
    old = "class G:\n  # File: /old/lib/model.py:3 in forward, code: x\n  def forward(self, x):\n    return x.sin()\n"
    new = old.replace("/old/", "/new/").replace("x.sin()", "x.cos()  # </pre><script>document.title=1</script>")
    graphs = [{lane: {"graph-0_0.py": old, "graph-1_0.py": old}}, {}, {lane: {"graph-0_0.py": new}}]
    found = a_matrix()
    path = tmp_path / "matrix.html"
    text = page(found, answer(found.comparisons[-1]), plugin="0.1.0", created="2026-01-31", graphs=graphs)
    path.write_text(text, encoding="utf-8")

    browser.open(f"{path.as_uri()}#cell=2.2")
    row = next(at for at, each in enumerate(found.rows) if (each.contract, each.lane) == lane)
    browser.open(f"{path.as_uri()}#cell={row}.2")
    for each in browser.all(".graph summary"):
        each.click()
    told = [each.text for each in browser.all(".graph")]
    browser.open(f"{path.as_uri()}#cell={row}.1")

    assert told == [
        "graph-0_0.py\n@@ -1,4 +1,4 @@\n class G:\n   # File: model.py:3 in forward, code: x\n"
        "   def forward(self, x):\n-    return x.sin()\n"
        "+    return x.cos()  # </pre><script>document.title=1</script>",
        "graph-1_0.py\n- the whole graph",
    ]
    assert browser.all(".graph") == []
    assert browser.driver.title.startswith("Compile contracts")
