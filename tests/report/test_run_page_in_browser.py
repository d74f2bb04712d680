"""The page of a run in headless Chromium: what a user sees, clicks and types. Skipped where there is no browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import NARROW, Page, needs_browser
from support.receipts import BREAK, HOLDING, ITEM, SKIPPED, a_receipt
from support.runs import AGAIN, BROKEN, MODEL, MOVED, RAN, SOURCES, a_large_run, a_run, entry, page_of, violated

from pytest_compilecontract.facts.evidence import Evidence
from pytest_compilecontract.facts.measurement import Call, GraphBreak, StepOperators
from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.sources import Source

pytestmark = needs_browser


class RunPage(Page):
    """The page of a run in a browser."""

    def files(self) -> list[str]:
        found: list[str] = self.js(
            "return [...document.querySelectorAll('#files button')].map((each) => "
            "(each.querySelector('.path')?.textContent || '') + each.querySelector('.name').textContent)"
        )
        return found

    def notes(self) -> dict[str, str]:
        """What is said beside lines, by the line above it, tag and title."""
        found: dict[str, str] = self.js("""
            const told = {};
            for (const note of document.querySelectorAll('.code .note')) {
                let row = note;
                while (!row.classList.contains('row')) row = row.previousElementSibling;
                const said = (part) => note.querySelector(part).textContent;
                told[`${row.dataset.line} ${said('.kind')}`] = said('.title');
            }
            return told;
        """)
        return found

    def causes(self) -> list[list[str]]:
        """What is said of each cause, a paragraph each."""
        parts = ":scope > *"
        return [
            [" ".join(part.text.split()) for part in each.find_elements("css selector", parts)]
            for each in self.all(".cause")
        ]

    def view(self, name: str) -> None:
        self.one(f"#views [data-view={name}]").click()

    def operators(self) -> dict[str, str]:
        """The lines with operators, as "45": "both 2+1"."""
        found: dict[str, str] = self.js("""
            const rows = [...document.querySelectorAll('.row:is(.ran, .slow, .both, .broke)')];
            const parts = (each) => [...each.querySelector('.ops').childNodes];
            const visible = (each) => parts(each).filter((it) => it.className !== 'hidden');
            return Object.fromEntries(rows.map((each) => [each.dataset.line,
                `${each.classList[1]} ${visible(each).map((it) => it.textContent).join('')}`]));
        """)
        return found


@pytest.fixture
def browser(quiet_driver: Any) -> RunPage:
    return RunPage(quiet_driver)


def write(receipt: Receipt, path: Path, sources: dict[str, Source] | None = None) -> str:
    path.write_text(page_of(receipt, sources), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(a_run(), tmp_path_factory.mktemp("page") / "index.html")


def test_the_answer_is_the_first_thing_said(browser: RunPage, url: str) -> None:
    browser.open(url)

    assert browser.one(".answer").text.splitlines()[-1] == "2 of 4 contracts hold: 1 is broken, 1 is violated."
    assert [" ".join(each.text.split()) for each in browser.all(".trouble")] == [
        "\u2715 broken tests/test_model.py::test_crash the test failed in call: no in aot",
        "! violated tests/test_model.py::test_model graph breaks: 1, at most 0; recompiles: 1, at most 0"
        " in aot, inductor",
    ]


def test_what_does_not_hold_is_told_once_a_cause_with_its_line_contracts_and_limits(browser: RunPage, url: str) -> None:
    browser.open(url)

    assert browser.one("#troubles-title").text == "What does not hold 2 causes, 2 contracts"
    assert browser.causes() == [
        [
            "graph break copy.deepcopy() is not supported",
            "model.py:41 mask = copy.deepcopy(self.mask)",
            "hint: Avoid calling copy.deepcopy()",
            "in test_model [aot, inductor] violated limits: max_graph_breaks=0",
        ],
        [
            f"recompiled {MOVED}: 1 recompile in each lane",
            "model.py:40 def forward(self, x):",
            "in test_model [aot, inductor] violated limits: max_recompiles=0",
        ],
    ]


def test_recompiles_by_one_value_are_one_row_with_their_count_in_each_lane(browser: RunPage, tmp_path: Path) -> None:
    values = [replace(AGAIN, guard=f"self.scale == {each}") for each in (1, 0.99, 0.98)]
    many, few = (replace(HOLDING, recompiles=tuple(each)) for each in (values, values[:1]))
    receipt = a_receipt(violated("test_a", "aot", many), violated("test_a", "capture", few))
    browser.open(write(receipt, tmp_path / "index.html"))

    assert [each[0] for each in browser.causes()] == [
        "recompiled `self.scale` changes: 3 recompiles in aot, 1 in capture"
    ]


def test_what_comes_of_a_break_is_folded_under_it(browser: RunPage, tmp_path: Path) -> None:
    groups = (replace(SKIPPED, broke=BREAK.location),)
    seen = replace(HOLDING, graph_breaks=(BREAK,), operators_run=StepOperators(compiled=1, eager=8, groups=groups))
    over = (Violation(limit="max_eager_frames=0 (default)", measured=1),)
    receipt = a_receipt(entry("test_a", measurement=seen, verdict="violated", violations=over))
    browser.open(write(receipt, tmp_path / "index.html"))

    (folded,) = browser.causes()
    browser.one(".follows summary").click()

    assert folded[-1] == "as a result, more ran in eager: 1 fact"
    assert browser.one(".follows li").text.endswith("Sequential.forward, called here, runs in eager: 4 linear, 4 relu")


def test_no_cause_is_out_of_reach_and_what_one_contract_has_alone_is_seen(browser: RunPage, tmp_path: Path) -> None:
    def broke(line: int) -> GraphBreak:
        here = replace(BREAK.location, file="model.py", line=line)
        return replace(BREAK, location=here, reason=f"break {line}", stacks=((here,),))

    shared = replace(HOLDING, graph_breaks=tuple(map(broke, range(1, 31))))
    own = replace(shared, graph_breaks=(*shared.graph_breaks, broke(49)))
    receipt = a_receipt(violated("test_a", measurement=shared), violated("test_b", measurement=own))
    browser.open(write(receipt, tmp_path / "index.html"))

    first = [each[0] for each in browser.causes()]
    browser.one("#causes .rest").click()
    focused = browser.js("return document.activeElement.closest('.cause').querySelector('.title').textContent")

    assert len(first) == 21
    assert first[-1] == "graph break break 49"
    assert focused == "break 21"
    assert len(browser.causes()) == 31


def test_contracts_beyond_the_first_are_behind_a_button(browser: RunPage, tmp_path: Path) -> None:
    names = [f"test_{number:02}" for number in range(40)]
    browser.open(write(a_receipt(*map(violated, names)), tmp_path / "index.html"))

    named = [len(browser.all(".trouble")), browser.one(".hits .rest").text]
    browser.one("#by-contract .rest").click()
    browser.one("#causes .rest").click()

    assert named == [30, "and 34 contracts more"]
    assert len(browser.all(".trouble")) == 40
    assert all(name in browser.one(".hits").text for name in names)


def test_the_filter_of_contracts_and_lanes_is_that_of_what_does_not_hold(browser: RunPage, tmp_path: Path) -> None:
    alone = replace(BREAK, location=ITEM, reason="Tensor.item()", stacks=((ITEM,),))
    receipt = a_receipt(violated("test_a"), violated("test_b", measurement=replace(HOLDING, graph_breaks=(alone,))))
    browser.open(write(receipt, tmp_path / "index.html"))

    browser.search("test_b")

    assert [each[0] for each in browser.causes()] == ["graph break Tensor.item()"]
    assert [each.text for each in browser.all(".who")] == ["tests/test_model.py::test_b"]
    assert browser.one("#troubles-title").text == "What does not hold 1 of 3 causes, 1 of 2 contracts, as filtered"


def test_a_contract_that_does_not_hold_leads_to_its_lanes(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.all(".who")[1].click()

    assert browser.one(".contract[open] .name").text == "test_model"
    assert len(browser.all(".contract[open] .lane-block")) == 2


def test_each_line_says_what_ran_and_what_went_wrong(browser: RunPage, url: str) -> None:
    browser.open(url)

    assert browser.files() == ["model.py", "train.py"]
    assert browser.operators() == {"41": "broke 2", "45": "both 2+1", "47": "ran 1"}
    notes = browser.notes()
    assert notes["40 recompiled"] == "tensor 'x' size mismatch at index 0. expected 8, actual 9"
    assert notes["41 graph break"] == "copy.deepcopy() is not supported"
    assert "Avoid calling copy.deepcopy()" in browser.one(".note.k-break").text
    assert "GB0179" in browser.one(".note.k-break").text
    assert "test_model [aot, inductor]" in browser.one(".note.k-break").text


def test_what_a_lane_that_holds_has_is_tolerated(browser: RunPage, tmp_path: Path) -> None:
    receipt = a_receipt(entry("test_a", measurement=BROKEN), violated("test_b", "inductor"))
    browser.open(write(receipt, tmp_path / "index.html"))

    both = browser.one(".note.k-break .headline").text
    browser.search("test_a")

    assert "tolerated" not in both
    assert "tolerated" in browser.one(".note.k-break .headline").text


def test_a_skipped_library_frame_is_on_the_line_that_calls_it(browser: RunPage, tmp_path: Path) -> None:
    skipped = StepOperators(compiled=1, eager=8, lines={"train.py:9": (0, 8)}, groups=(SKIPPED,))
    receipt = a_receipt(entry("test_a", measurement=replace(HOLDING, operators_run=skipped)))

    browser.open(write(receipt, tmp_path / "index.html"))

    assert browser.operators() == {"9": "slow 8"}
    assert browser.notes() == {"9 skipped": "Sequential.forward, called here, runs in eager: 4 linear, 4 relu"}


def test_evidence_is_linked_whatever_its_folder_is_called(browser: RunPage, tmp_path: Path) -> None:
    hostile = Evidence(
        folder='javascript:alert(1)//"><b>',
        files=("graph-0_0.py", "<i>#?.py"),
        shown="<u>violated",
        left_out=("<s>no",),
    )
    receipt = a_receipt(replace(violated("test_a", "aot"), evidence=hostile))
    browser.open(write(receipt, tmp_path / "index.html"))
    browser.view("contracts")
    browser.one(".evidence summary").click()

    links = browser.js("return [...document.querySelectorAll('.evidence a')].map((each) => each.href)")
    told = browser.one(".evidence").text

    here = tmp_path.as_uri()
    folder = f"{here}/javascript%3Aalert%281%29//%22%3E%3Cb%3E"
    assert links == [
        f"{folder}/",
        f"{folder}/README.md",
        f"{folder}/graph-0_0.py",
        f"{folder}/%3Ci%3E%23%3F.py",
    ]
    assert told.splitlines() == [
        "Evidence of one more run: <u>violated",
        "the folder, what is in it",
        "graph-0_0.py what Dynamo captured, as code",
        "<i>#?.py",
        "Left out: <s>no",
    ]


def test_nothing_of_a_lane_is_cut_off_on_a_narrow_screen(browser: RunPage, tmp_path: Path) -> None:
    left = Evidence(folder="evidence/a-lane", files=("trace.log", "aot_forward-0_0.py"), shown="violated " * 9)
    seen = replace(BROKEN, calls=tuple(Call(phase="warm-up", seconds=1.23, graphs_executed=12) for _ in range(3)))
    printed = ("model.py:41 in forward: " + "x" * 300, "  " + "a long line of words " * 20)
    over = (Violation(limit="max_graph_breaks=0", measured=1, details=printed),)
    receipt = a_receipt(replace(violated("test_a", "aot", seen), evidence=left, violations=over))
    browser.open(write(receipt, tmp_path / "index.html"), NARROW)
    browser.view("contracts")
    browser.js("document.querySelectorAll('.lane-block details').forEach((each) => { each.open = true; })")

    wider = browser.js("""
        const block = document.querySelector('.lane-block').getBoundingClientRect();
        return [...document.querySelectorAll('.lane-block *')]
            .filter((each) => each.getBoundingClientRect().right > block.right + 1).map((each) => each.className);
    """)

    assert browser.one(".details").is_displayed()
    assert wider == []


def test_a_fact_leads_to_its_line_and_back(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.one("#facts button:has(.k-break)").click()
    there = browser.js("return document.activeElement.className")
    browser.one(".note.k-break .back").click()
    back = browser.js("return document.activeElement.textContent")

    assert there == "note k-break here"
    assert back.startswith("41graph break")


def test_the_answer_leads_to_the_line(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.view("contracts")

    browser.one("#causes a").click()

    browser.until(lambda: "here" in browser.js("return document.activeElement.className"))
    assert browser.one("#source").is_displayed()
    assert browser.js("return document.activeElement.querySelector('.title').textContent") == (
        "copy.deepcopy() is not supported"
    )
    box = browser.js("const it = document.activeElement.getBoundingClientRect(); return [it.top, it.bottom]")
    assert box[0] > 0
    assert box[1] < 900


def test_the_same_cause_leads_there_again(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.one("#causes a").click()
    browser.view("modules")

    browser.one("#causes a").click()

    assert browser.js("return document.activeElement.className") == "note k-break here"


def test_another_file_is_read_from_its_beginning(browser: RunPage, tmp_path: Path) -> None:
    receipt, sources = a_large_run(9, 20)
    browser.open(write(receipt, tmp_path / "index.html", sources))
    browser.js("window.scrollTo(0, document.body.scrollHeight)")

    browser.js("document.querySelector('[data-file=\"3\"]').click()")

    top = browser.js("return document.getElementById('file').getBoundingClientRect().top")
    under = browser.js("return document.getElementById('bar').offsetHeight")
    assert under <= top < under + 40


def test_what_a_skipped_frame_comes_from_is_a_click_away(browser: RunPage, tmp_path: Path) -> None:
    broke = replace(SKIPPED, broke=BREAK.location)
    seen = replace(HOLDING, graph_breaks=(BREAK,), operators_run=StepOperators(compiled=1, eager=8, groups=(broke,)))
    browser.open(write(a_receipt(entry("test_a", measurement=seen)), tmp_path / "index.html"))

    browser.one("[data-file='1']").click()
    browser.one(".note.k-skipped .link").click()

    assert browser.js("return document.activeElement.className") == "note k-break here"


def test_contract_and_lane_filter(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.search("test_x")
    by_contract = browser.files(), list(browser.notes())
    browser.one("#clear").click()
    browser.js(
        "const it = document.getElementById('lane'); it.value = 'inductor'; it.dispatchEvent(new Event('change'))"
    )
    by_lane = browser.one(".note.k-break dd:last-child").text
    address = browser.driver.current_url
    browser.open(address)
    kept = browser.one("#status").text
    browser.one("#clear").click()

    assert by_contract == (["model.py"], ["46 recompile limit"])
    assert by_lane == "test_model [inductor]"
    assert kept == "2 lanes of 6 shown, 2 files"
    assert browser.one("#status").text == "6 lanes shown, 2 files"


def test_a_line_that_breaks_the_graph_is_no_line_that_ran_compiled(browser: RunPage, url: str) -> None:
    browser.open(url)
    told = browser.js("return document.querySelector('[data-line=\"41\"] .ops').textContent")
    browser.one("#kinds [data-kind=recompile]").click()
    without = browser.operators()["41"]
    browser.one("#clear").click()
    browser.search("test_x")

    assert told == "2 breaks the graph, ran compiled"
    assert without == "broke 2"
    assert "41" not in browser.operators()


def test_a_kind_is_shown_alone_and_what_is_left_out_is_said(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.one("#kinds [data-kind=recompile]").click()
    alone, said = list(browser.notes()), browser.one("#status").text
    address = browser.driver.current_url
    browser.view("contracts")
    browser.one(".contract > summary:has(.v-violated)").click()
    browser.until(lambda: browser.all(".lane-block"))
    shown = browser.one(".filtered").text
    browser.open(address)
    kept = list(browser.notes())
    browser.one("#kinds [data-kind=recompile]").click()
    again = list(browser.notes())

    assert alone == kept == ["40 recompiled"]
    assert said == (
        "6 lanes shown, 2 files; only recompiles, filtered out: 1 recompile limit, 1 graph break, 1 skipped frame"
    )
    assert shown == "Filtered out: 1 graph break, 1 skipped frame."
    assert again == ["40 recompiled", "41 graph break", "46 recompile limit"]
    assert browser.one("#status").text == "6 lanes shown, 2 files"


def test_all_kinds_come_back_by_their_chip(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.one("#kinds [data-kind=break]").click()
    pressed = browser.js("return document.querySelector('#kinds [aria-pressed=true]').textContent")
    browser.one("#kinds [data-kind='']").click()

    assert pressed == "graph break1"
    assert browser.js("return document.activeElement.textContent") == "all4"
    assert len(browser.notes()) == 3


def test_the_chips_count_what_the_lanes_that_are_shown_have(browser: RunPage, url: str) -> None:
    browser.open(url)

    everything = [each.text.split() for each in browser.all("#kinds button")]
    browser.search("test_x")

    assert [each[-1] for each in everything] == ["4", "1", "1", "1", "1"]
    assert [" ".join(each.text.split()) for each in browser.all("#kinds button")] == [
        "all 1",
        "recompile limit 1",
        "graph break 0",
        "skipped 0",
        "recompiled 0",
    ]


def test_a_cause_says_what_would_avoid_it(browser: RunPage, tmp_path: Path) -> None:
    hint = "torch.compile(dynamic=True) <img src=x onerror=alert(1)>"
    again = tuple(replace(each, hint=hint) for each in BROKEN.recompiles or ())
    broke = replace(BREAK, hints=("first", "second"))
    seen = replace(BROKEN, graph_breaks=(broke,), recompiles=again)
    browser.open(write(a_receipt(violated("test_a", measurement=seen)), tmp_path / "index.html"), (1400, 3000))

    told = browser.js("return [...document.querySelectorAll('.cause .hint, .note dd')].map((each) => each.textContent)")

    assert told[:2] == ["hint: first", f"hint: {hint}"]
    assert {"second", hint} < set(told[2:])
    assert browser.all(".cause img") == []


@pytest.mark.parametrize("size", [NARROW, (1400, 900)], ids=["390", "1400"])
def test_a_jump_shows_the_line_and_the_title(browser: RunPage, tmp_path: Path, size: tuple[int, int]) -> None:
    long = replace(BREAK, hints=tuple(f"hint {number}: " + "more words " * 20 for number in range(12)))
    receipt = a_receipt(violated("test_a", measurement=replace(BROKEN, graph_breaks=(long,))))
    browser.open(write(receipt, tmp_path / "index.html"), size)

    browser.one("#causes a").click()
    browser.js("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    row, title, bar = browser.js("""
        const box = (found) => { const { top, bottom } = found.getBoundingClientRect(); return [top, bottom]; };
        const bar = document.getElementById('bar');
        const over = getComputedStyle(bar).position === 'sticky' ? box(bar)[1] : 0;
        return [box(document.querySelector('[data-line="41"]')), box(document.querySelector('.here .title')), over];
    """)
    assert bar <= row[0] < row[1] <= title[0] < title[1] < size[1] / 2


def test_a_jump_to_the_last_of_many_facts_of_a_line_shows_its_title(browser: RunPage, tmp_path: Path) -> None:
    breaks = tuple(replace(BREAK, kind=f"kind {at}", reason=f"reason {at}", hints=("words " * 200,)) for at in range(6))
    receipt = a_receipt(violated("test_a", measurement=replace(BROKEN, graph_breaks=breaks)))
    browser.open(write(receipt, tmp_path / "index.html"))

    browser.js("document.querySelector('#facts li:last-child button').click()")

    top, bar = browser.js(
        "return ['.here .title', '#bar'].map((each) => document.querySelector(each).getBoundingClientRect())"
        ".map((box, at) => (at ? box.bottom : box.top))"
    )
    assert bar <= top < 600


def test_the_calls_of_a_lane_are_told_with_steady_ones_together(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.view("contracts")

    browser.one(".contract[data-contract] > summary:has(.v-violated)").click()

    browser.until(lambda: browser.all(".calls"))
    cells = [each.text for each in browser.one(".calls").find_elements("css selector", ":scope > *")]
    assert cells == [
        *("call 0", "cold", "", "2 s", "1 graph ran"),
        *("call 1", "warm-up, compiled again", "", "1 s", "1 graph ran"),
        *("calls 2\u20136", "steady", "", "1 ms", "2 graphs ran in each"),
    ]
    widths = browser.js(
        "return [...document.querySelectorAll('.calls .track i')].slice(0, 2).map((it) => it.style.width)"
    )
    assert widths == ["100%", "50%"]
    shown = browser.one(".lane-block").text
    assert "compiling took 3 s: Dynamo 0.5 s, code generation 2.5 s" in shown
    assert "pytest --compile-contracts --contract-lanes=aot -- 'tests/test_model.py::test_model[aot]'" in shown


def test_modules_are_a_tree_of_the_lane_that_lost_most(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.view("modules")

    rows = [each.text.splitlines() for each in browser.all(".leaf")]
    browser.one("#only").click()
    shown = [each.text.splitlines()[0] for each in browser.all(".leaf") if each.is_displayed()]

    assert rows[0] == ["the whole target", "5 compiled, 3 eager"]
    assert ["10", "1 compiled"] in rows
    assert shown == ["the whole target", "head", "layers", "2", "mlp"]
    assert "test_model [aot]: 63 % of operators compiled" in browser.one("#module-lane").text


def test_the_lanes_of_modules_are_those_of_the_filter(browser: RunPage, tmp_path: Path) -> None:
    seen = replace(HOLDING, operators_run=RAN)
    receipt = a_receipt(entry("test_a", measurement=seen), entry("test_b", measurement=seen))
    browser.open(write(receipt, tmp_path / "index.html"))
    browser.view("modules")

    browser.search("test_b")

    told = [each.text for each in browser.all("#module-lane option")]
    assert told == ["test_b [aot]: 63 % of operators compiled"]


def test_the_share_of_a_module_is_beside_its_name(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.view("modules")

    gap = browser.js("""
        const name = document.querySelector('.leaf .name');
        const text = document.createRange();
        text.selectNodeContents(name);
        return name.nextElementSibling.getBoundingClientRect().left - text.getBoundingClientRect().right;
    """)

    assert 0 < gap < 120


def test_what_a_lane_is_can_be_read(browser: RunPage, url: str) -> None:
    browser.open(url)
    browser.view("contracts")

    legend = browser.one("#contracts .legend").text
    title = browser.js("return document.querySelector('#lane option[value=aot]').title")

    assert legend.startswith("A lane is one exact way to compile and run a contract:")
    assert "inductor Inductor compiles the graphs" in " ".join(legend.split())
    assert title == "lane aot: AOTAutograd traces the captured graphs, backward too, and eager runs them"


def test_a_file_that_is_missing_or_changed_is_said(browser: RunPage, tmp_path: Path) -> None:
    changed = Source(lines=(*MODEL[:40], "        pass", *MODEL[41:]))
    gone = Source(problem="no such file in the project's folder", outside=True)
    browser.open(write(a_run(), tmp_path / "index.html", {**SOURCES, "model.py": changed, "train.py": gone}))

    said = browser.one(".notice").text
    was = browser.one(".was").text
    browser.one("[data-file='1']").click()

    assert said.startswith("This file has changed since the run")
    assert was.startswith("line 41 was: mask = copy.deepcopy(self.mask)")
    assert browser.operators() == {"9": "slow 2"}
    assert browser.one(".notice").text.startswith("The source is not shown: no such file in the project's folder")
    assert browser.one(".row .text").text == "loss = model(x)"


def test_hostile_names_and_source_are_text(browser: RunPage, url: str) -> None:
    browser.open(url)

    source = browser.js("return document.querySelector('[data-line=\"46\"] .text').textContent")
    title = browser.one(".note.k-limit").text
    browser.view("contracts")
    names = browser.one("#contracts").text

    assert source.strip().startswith("# </script><script>document.title='owned'</script>")
    assert r"onerror=alert(1)>\u202e" in source
    assert "<img src=x" in title
    assert "<img src=x" in names
    assert browser.driver.title == "Compile contracts on torch 2.11.0"
    assert browser.js("return [document.scripts.length, document.images.length]") == [2, 0]


def test_the_keyboard_reaches_the_filter(browser: RunPage, url: str) -> None:
    browser.open(url)

    browser.press("/")

    assert browser.js("return document.activeElement.id") == "text"


@pytest.mark.parametrize("view", ["source", "contracts", "modules", "environment"])
@pytest.mark.parametrize("size", [NARROW, (760, 900), (1900, 1000)], ids=["390", "760", "1900"])
def test_nothing_scrolls_sideways(browser: RunPage, url: str, view: str, size: tuple[int, int]) -> None:
    browser.open(url, size)
    browser.view(view)
    browser.js("document.querySelectorAll('details').forEach((each) => { each.open = true; })")

    assert browser.js("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_both_themes(browser: RunPage, url: str, scheme: str) -> None:
    browser.open(url, scheme=scheme)

    contrasts = browser.contrasts(
        ".kind.k-break",
        ".kind.k-recompile",
        ".row .c",
        ".row .e",
        ".row.broke > span",
        ".chip .count",
        ".row > span",
        ".note dt",
        ".notice, .legend",
        ".tally",
        ".v-broken",
        ".v-violated",
        ".trouble .muted",
        ".given dt",
        "#views button",
        "#causes a",
        ".cause .hits .muted",
    )

    assert min(contrasts) >= 4.5


def test_printing_has_the_answer_and_the_file(browser: RunPage, url: str) -> None:
    browser.open(url)

    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {})

    assert len(printed["data"]) > 10_000


def test_an_empty_run_says_so(browser: RunPage, tmp_path: Path) -> None:
    browser.open(write(a_receipt(), tmp_path / "index.html"))

    assert "No contract was measured." in browser.one(".answer").text
    assert browser.one("#file").text == "No source line is known for any lane."


def test_500_contracts_and_200_files_stay_quick(browser: RunPage, tmp_path: Path) -> None:
    large, sources = a_large_run(500, 200)
    over = tuple(
        Violation(limit=f"max_{name}=0", measured=1) for name in ("graph_breaks", "recompiles", "eager_frames")
    )
    wrong = (replace(each, verdict="violated", violations=over) for each in large.entries)
    browser.open(write(replace(large, entries=tuple(wrong)), tmp_path / "index.html", sources))

    loaded = browser.js("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    took = browser.js("""
        const timed = (act) => {
            const from = performance.now();
            act();
            document.body.offsetHeight;
            return performance.now() - from;
        };
        const lane = document.getElementById('lane');
        return [
            timed(() => document.querySelector('[data-file="7"]').click()),
            timed(() => { lane.value = 'aot'; lane.dispatchEvent(new Event('change')); }),
            timed(() => document.querySelector('[data-view=contracts]').click()),
            timed(() => document.querySelector('[data-view=modules]').click()),
        ];
    """)

    assert len(browser.files()) == 200
    assert browser.one("#troubles-title").text.endswith("271 of 271 causes, 500 of 500 contracts, as filtered")
    # A third of it on a machine that does nothing else.
    assert loaded < 5000
    assert max(took) < 2000


def test_violated_lanes_come_before_those_that_hold(browser: RunPage, tmp_path: Path) -> None:
    receipt = a_receipt(entry("test_a"), *(entry(f"test_{number}") for number in range(5)), violated("test_z"))
    browser.open(write(receipt, tmp_path / "index.html"))
    browser.view("contracts")

    assert browser.one(".contract .name").text == "test_z"
