"""The plugin as pytest shows it, where no torch is needed: off, collecting, lanes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sessions import UNUSED, runpytest_session

from pytest_compilecontract import compile_contract
from pytest_compilecontract.files.receipt import read_receipt

KNOWN_LIMITS = (
    "(known limits: allow_recompile_limit, atol, capture_targets, check_grads, check_state_dict, cudagraphs, "
    "frontier, fullgraph, keeps_outputs, lanes, max_cache_bypasses, max_cache_misses, max_cold_seconds, "
    "max_collectives, max_eager_frames, max_eager_ops, max_graph_breaks, max_graphs, max_guards, max_host_syncs, "
    "max_kernels, max_kernels_ratio, max_memory_growth, max_memory_ratio, max_recompiles, max_recomputed_graphs, "
    "max_saved_ratio, max_warm_misses, max_warm_seconds, min_frontier, min_ops_captured, min_speedup, numerics, "
    "process_group, ranks, ranks_agree, rtol, same_as, same_collectives, same_placements)"
)
KNOWN_LANES = (
    "(known lanes: aot, autotune, capture, cudagraphs, dynamic, eager, inductor, xla-lazy, xla-openxla, xla-torchax)"
)
CONTRACT = """
    from pytest_compilecontract import compile_contract

    @compile_contract({limits})
    def test_block(compile_lane):
        pass
"""
SUITE = """
    from pytest_compilecontract import compile_contract

    @compile_contract(max_recompiles=0)
    def test_with_the_fixture(compile_lane):
        raise AssertionError("never called without the switch")

    @compile_contract(max_recompiles=0)
    def test_bare():
        assert True

    def test_plain():
        pass
"""
HEAVY = ("torch", "numpy", "msgspec", "jsonschema", "triton", "pytest_compilecontract.plugin.hooks")


@pytest.fixture(autouse=True)
def _without_others(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # (`pytester` first, which takes the variable away.)
    monkeypatch.setenv("PYTEST_ADDOPTS", UNUSED)


def lane_project(pytester: pytest.Pytester, table: str) -> None:
    pytester.makepyprojecttoml(table)
    pytester.makepyfile(test_block=CONTRACT.format(limits=""))


def collected(pytester: pytest.Pytester, *options: str) -> list[str]:
    """The node ids that a session with these options collects."""
    result = pytester.runpytest("--compile-contracts", "--collect-only", "-q", *options)
    assert result.ret == pytest.ExitCode.OK
    return [line for line in result.outlines if "::" in line]


def refused(pytester: pytest.Pytester, *options: str) -> str:
    """The one line that a usage error is."""
    result = pytester.runpytest("--compile-contracts", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line]
    assert len(lines) == 1
    return lines[0]


# off


def test_off_the_fixture_skips_and_bare_tests_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)

    result = pytester.runpytest("-rs")

    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * compile contracts run with --compile-contracts"])
    result.stdout.no_fnmatch_line("*compile contracts: *")


def test_off_nothing_heavy_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.makeconftest(
        f"""
        import json, pathlib, sys

        def pytest_unconfigure():
            loaded = [name for name in {HEAVY!r} if name in sys.modules]
            pathlib.Path("loaded.json").write_text(json.dumps(loaded))
        """
    )

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=2, skipped=1)
    assert json.loads(Path("loaded.json").read_text()) == []


@pytest.mark.parametrize("option", ["--contract-lanes=aot", "--contract-report=out", "--contract-observe"])
def test_off_an_option_of_the_plugin_is_a_usage_error(pytester: pytest.Pytester, option: str) -> None:
    result = pytester.runpytest(option)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = option.partition("=")[0]
    assert [line for line in result.errlines if line] == [f"ERROR: {name} does nothing without --compile-contracts"]


def test_off_the_marker_is_known_to_pytest(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--markers")

    result.stdout.fnmatch_lines(["@pytest.mark.compile_contract(*limits): what compiling may do in this test, *"])


# the decorator


def test_the_decorator_is_the_marker() -> None:
    ours = compile_contract(max_recompiles=0, lanes=["aot"])

    assert ours == pytest.mark.compile_contract(max_recompiles=0, lanes=["aot"])


def test_the_decorator_needs_no_parentheses() -> None:
    def test_x() -> None: ...

    marked = compile_contract(test_x)

    assert marked is test_x
    assert [mark.name for mark in marked.pytestmark] == ["compile_contract"]


# collecting


def test_a_contract_is_collected_once_a_lane(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_block=SUITE)

    found = collected(pytester)

    assert found == [
        "test_block.py::test_with_the_fixture[capture]",
        "test_block.py::test_with_the_fixture[aot]",
        "test_block.py::test_with_the_fixture[inductor]",
        "test_block.py::test_bare",
        "test_block.py::test_plain",
    ]


def test_other_parameters_are_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_block="""
        import pytest

        @pytest.mark.parametrize("size", [4, 8])
        def test_block(compile_lane, size):
            pass
        """
    )

    found = collected(pytester, "--contract-lanes=capture,aot")

    assert sorted(found) == [
        "test_block.py::test_block[aot-4]",
        "test_block.py::test_block[aot-8]",
        "test_block.py::test_block[capture-4]",
        "test_block.py::test_block[capture-8]",
    ]


@pytest.mark.parametrize(
    ("limits", "options", "lanes"),
    [
        pytest.param("", (), ["capture", "aot", "inductor"], id="default"),
        pytest.param("", ("--contract-lanes=aot,capture",), ["aot", "capture"], id="option"),
        pytest.param("", ("--contract-lanes= aot , aot",), ["aot"], id="spaces-and-twice"),
        pytest.param("", ("-o", "contract_lanes=aot eager"), ["aot", "eager"], id="ini"),
        pytest.param("", ("-o", "contract_lanes=aot", "--contract-lanes=inductor"), ["inductor"], id="option-over-ini"),
        pytest.param("lanes=['aot']", (), ["aot"], id="marker-narrows"),
        pytest.param("lanes=['inductor', 'dynamic']", (), ["inductor"], id="marker-never-widens"),
        pytest.param("lanes=['dynamic']", (), ["dynamic"], id="none-left"),
        pytest.param(
            "",
            ("--contract-lanes=all",),
            ["capture", "aot", "inductor", "dynamic", "cudagraphs", "autotune"],
            id="all-but-the-reference",
        ),
    ],
)
def test_lanes(pytester: pytest.Pytester, limits: str, options: tuple[str, ...], lanes: list[str]) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits=limits))

    assert collected(pytester, *options) == [f"test_block.py::test_block[{lane}]" for lane in lanes]


def test_a_contract_none_of_whose_lanes_was_chosen_says_so(pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    pytester.makepyfile(test_block=CONTRACT.format(limits="lanes=['dynamic']"))

    result = runpytest_session(pytester, "--compile-contracts", "-rs", "--contract-lanes=capture,aot")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * not among the lanes chosen (capture, aot)"])


def test_a_lane_that_was_not_chosen_is_no_part_of_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits="lanes=['dynamic']"))

    runpytest_session(pytester, "--compile-contracts", "--contract-lanes=capture,aot", "--contract-report=out")

    assert read_receipt(pytester.path / "out" / "receipt.json").entries == ()


def test_a_lane_of_the_project(pytester: pytest.Pytester) -> None:
    lane_project(
        pytester,
        """
        [tool.compilecontract.lanes.small-limit]
        backend = "eager"
        dynamo = { recompile_limit = 2 }
        [tool.pytest.ini_options]
        contract_lanes = ["small-limit"]
        """,
    )

    assert collected(pytester) == ["test_block.py::test_block[small-limit]"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param(
            "[tool.compilecontract.lanes.mine]\nbackends = 'eager'",
            "pyproject.toml: lane 'mine': unknown key 'backends' (known keys: autocast, backend, cache, device, "
            "disable, dtype, dynamic, dynamo, fullgraph, in_place, inductor, isolate_recompiles, matmul_precision, "
            "mode, name, options, process_group, ranks, recompile_limit, requires)",
            id="key-of-a-lane",
        ),
        pytest.param(
            "[tool.compilecontract]\nlane = 1",
            "pyproject.toml: tool.compilecontract: unknown key 'lane', did you mean 'lanes'? (known keys: "
            "allow-unmeasured, baselines, evidence, lanes, policy, repeat, report, timeout, waivers)",
            id="key-of-the-table",
        ),
        pytest.param(
            "[tool.compilecontract]\nlanes = 1",
            "pyproject.toml: tool.compilecontract.lanes: expected a table, got 1 (to choose lanes: --contract-lanes)",
            id="no-table",
        ),
        pytest.param(
            "[tool.compilecontract.lanes.mine]\ndynamic = 'yes'",
            "pyproject.toml: lane 'mine': dynamic: expected true or false, got 'yes'",
            id="type",
        ),
        pytest.param(
            "[tool.compilecontract.lanes.aot]\nbackend = 'eager'",
            "pyproject.toml: lane 'aot': this name is built in (built-in names: all, aot, autotune, capture, "
            "cudagraphs, dynamic, eager, frontier, inductor, xla-lazy, xla-openxla, xla-torchax)",
            id="built-in",
        ),
    ],
)
def test_a_project_lane_that_means_nothing_is_refused(pytester: pytest.Pytester, table: str, message: str) -> None:
    lane_project(pytester, table)

    assert refused(pytester) == f"ERROR: {message}"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        pytest.param("--contract-lanes=fast", f"unknown lane 'fast' {KNOWN_LANES}", id="unknown"),
        pytest.param(
            "--contract-lanes=,",
            f"--contract-lanes needs a lane {KNOWN_LANES[:-1]}, or 'all')",
            id="none",
        ),
        pytest.param("-ocontract_lanes=fast", f"unknown lane 'fast' {KNOWN_LANES}", id="ini"),
    ],
)
def test_a_lane_that_is_not_known_is_refused(pytester: pytest.Pytester, option: str, message: str) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits=""))

    assert refused(pytester, option) == f"ERROR: {message}"


MARKER_ERRORS = [
    pytest.param(
        "max_recompile=0",
        f"unknown limit 'max_recompile', did you mean 'max_recompiles'? {KNOWN_LIMITS}",
        id="unknown-limit",
    ),
    pytest.param(
        "max_recompiles=True",
        f"max_recompiles: expected a whole number from 0 to 1000000000, got True {KNOWN_LIMITS}",
        id="wrong-type",
    ),
    pytest.param(
        "fullgraph=True, max_graph_breaks=1",
        f"fullgraph=True contradicts max_graph_breaks=1 {KNOWN_LIMITS}",
        id="contradiction",
    ),
    pytest.param(
        "max_recompiles=10**5000",
        f"max_recompiles: expected a whole number from 0 to 1000000000, got a int {KNOWN_LIMITS}",
        id="no-end",
    ),
    pytest.param(
        "max_recompiles=-10**5000",
        f"max_recompiles: expected a whole number from 0 to 1000000000, got a int {KNOWN_LIMITS}",
        id="no-beginning",
    ),
    pytest.param(
        "rtol=10**400",
        f"rtol: expected a finite number of at least 0, got 1{'0' * 79}... {KNOWN_LIMITS}",
        id="no-float",
    ),
    pytest.param(
        "rtol=type('Odd', (), {'__repr__': lambda self: 1 / 0})()",
        f"rtol: expected a finite number of at least 0, got a Odd {KNOWN_LIMITS}",
        id="no-repr",
    ),
    pytest.param("lanes=['aott']", f"unknown lane 'aott', did you mean 'aot'? {KNOWN_LANES}", id="unknown-lane"),
    pytest.param("0", "compile_contract takes keywords only, got 0", id="positional"),
]


@pytest.mark.parametrize(("limits", "message"), MARKER_ERRORS)
def test_a_marker_that_means_nothing_is_refused(pytester: pytest.Pytester, limits: str, message: str) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits=limits))

    assert refused(pytester) == f"ERROR: test_block.py::test_block: {message}"


def test_a_marker_is_refused_once_for_all_parameters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_block="""
        import pytest

        @pytest.mark.parametrize("size", [4, 8])
        @pytest.mark.compile_contract(max_graph=-1)
        def test_block(compile_lane, size):
            pass
        """
    )

    message = f"unknown limit 'max_graph', did you mean 'max_graphs'? {KNOWN_LIMITS}"
    assert refused(pytester) == f"ERROR: test_block.py::test_block: {message}"


def test_a_class_marker_is_refused_by_its_class(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_block="""
        from pytest_compilecontract import compile_contract

        @compile_contract(rtol="1e-3")
        class TestBlock:
            def test_trains(self, compile_lane):
                pass
        """
    )

    message = f"TestBlock: rtol: expected a finite number of at least 0, got '1e-3' {KNOWN_LIMITS}"
    assert refused(pytester) == f"ERROR: test_block.py::TestBlock::test_trains: {message}"


def test_markers_that_contradict_one_another_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_block="""
        from pytest_compilecontract import compile_contract

        pytestmark = compile_contract(max_graph_breaks=1)

        @compile_contract(fullgraph=True)
        def test_block(compile_lane):
            pass
        """
    )

    message = f"fullgraph=True contradicts max_graph_breaks=1 {KNOWN_LIMITS}"
    assert refused(pytester) == f"ERROR: test_block.py::test_block: {message}"


@pytest.mark.parametrize("limit", ["numerics='bitwise'", "rtol=1e-3", "check_grads=True", "lanes=['aot']"])
def test_a_bare_test_has_nothing_to_compare(pytester: pytest.Pytester, limit: str) -> None:
    pytester.makepyfile(
        test_block=f"""
        from pytest_compilecontract import compile_contract

        @compile_contract({limit})
        def test_block():
            pass
        """
    )

    name = limit.partition("=")[0]
    message = f"{name} needs the compile_lane fixture (the test compiles by itself)"
    assert refused(pytester) == f"ERROR: test_block.py::test_block: {message}"


@pytest.mark.parametrize(
    "fixture",
    ["@pytest.mark.usefixtures('compile_lane')", "@pytest.mark.usefixtures('asks')"],
    ids=["directly", "through-another"],
)
def test_a_unittest_cannot_have_the_fixture(pytester: pytest.Pytester, fixture: str) -> None:
    pytester.makepyfile(
        test_block=f"""
        import unittest
        import pytest

        @pytest.fixture
        def asks(compile_lane):
            yield

        {fixture}
        class Block(unittest.TestCase):
            def test_block(self):
                pass
        """
    )

    message = "compile_lane needs a test function that pytest can run once per lane"
    assert refused(pytester) == f"ERROR: test_block.py::Block::test_block: {message}"


def test_the_fixture_is_not_to_be_had_later(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_late(request): request.getfixturevalue('compile_lane')")

    result = pytester.runpytest("--compile-contracts")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["compile_lane runs a test once per lane: request it as an argument of the test"])
    result.stdout.no_fnmatch_line("*Error*")


def test_all_that_is_wrong_is_said_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_block="""
        from pytest_compilecontract import compile_contract

        @compile_contract(7)
        def test_one(compile_lane):
            pass

        @compile_contract(rtol=1.0)
        def test_two():
            pass
        """
    )

    result = runpytest_session(pytester, "--compile-contracts")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: test_block.py::test_one: compile_contract takes keywords only, got 7",
        "test_block.py::test_two: rtol needs the compile_lane fixture (the test compiles by itself)",
    ]


def test_a_marker_is_refused_by_the_controller_of_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_block=CONTRACT.format(limits="7"), test_plain="def test_plain(): pass")

    result = runpytest_session(pytester, "--compile-contracts", "-n2")

    assert [line for line in result.errlines if line] == [
        "ERROR: test_block.py::test_block: compile_contract takes keywords only, got 7"
    ]
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


# a session in which no contract ran


def test_a_session_without_contracts_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    result = runpytest_session(pytester, "--compile-contracts")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= compile contracts: none measured =*", "no compile contract was measured"])


def test_no_terminal_no_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    result = runpytest_session(pytester, "--compile-contracts", "-p", "no:terminal")

    assert result.ret == pytest.ExitCode.OK
    assert result.outlines == []


def test_the_report_folder_is_below_where_pytest_was_called(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    inner = pytester.mkdir("inner")
    (inner / "test_plain.py").write_text("def test_plain(): pass")
    pytester.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        result = runpytest_session(pytester, "--compile-contracts", "--contract-report=out/new")

    assert result.ret == pytest.ExitCode.OK
    assert (inner / "out" / "new" / "receipt.json").is_file()
    result.stdout.fnmatch_lines([f"receipt: {inner}/out/new/receipt.json*"])


def test_collecting_alone_tells_of_no_lanes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits=""))

    result = pytester.runpytest("--compile-contracts", "--collect-only", "-q", "--contract-report=report")

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*compile contracts*")
    assert not Path("report/receipt.json").exists()


@pytest.mark.parametrize(
    "options",
    [("--collect-only",), ("-k", "nothing"), ("none.py",), ("--contract-lanes=fast",)],
    ids=["collect-only", "nothing-selected", "no-such-file", "usage-error"],
)
def test_a_session_that_measures_nothing_leaves_an_earlier_receipt(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_block=CONTRACT.format(limits=""))
    pytester.mkdir("out")
    Path("out/receipt.json").write_text("an earlier one")

    result = pytester.runpytest("--compile-contracts", "--contract-report=out", *options)

    assert result.ret != pytest.ExitCode.INTERNAL_ERROR
    assert Path("out/receipt.json").read_text() == "an earlier one"


def test_a_report_without_a_folder_is_refused(pytester: pytest.Pytester) -> None:
    assert refused(pytester, "--contract-report=") == "ERROR: --contract-report needs a folder"


def test_a_report_folder_that_is_gone_at_the_end_fails_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pathlib, shutil

        def test_plain():
            shutil.rmtree("out")
            pathlib.Path("out").write_text("a file")
        """
    )

    result = runpytest_session(pytester, "--compile-contracts", "--contract-report=out")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: *out*: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_module_marker_leaves_ordinary_tests_alone(pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    pytester.makepyfile(
        """
        import torch
        from pytest_compilecontract import compile_contract

        pytestmark = compile_contract(max_recompiles=0, lanes=["capture"])

        def test_ordinary():
            pass

        def test_compiles():
            run = torch.compile(lambda x: x.sin(), backend="eager")
            run(torch.ones(3))
            run(torch.ones(4))
        """
    )

    result = runpytest_session(pytester, "--compile-contracts")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*compile contracts on torch *: 0 of 1 held*"])


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        pytest.param(
            "raise ImportError('libtorch.so: no such file')",
            "torch cannot be imported (libtorch.so: no such file)",
            id="broken",
        ),
        pytest.param(
            "__version__ = '2.10.1+cpu'", "torch 2.10.1+cpu is older than 2.11, the oldest supported", id="old"
        ),
    ],
)
def test_a_torch_that_cannot_be_measured_makes_lanes_unmeasured(
    pytester: pytest.Pytester, torch: str, reason: str
) -> None:
    pytester.makepyfile(
        torch=torch,
        test_block="""
        from pytest_compilecontract import compile_contract

        @compile_contract(max_recompiles=0)
        def test_lane(compile_lane):
            raise AssertionError("must not run")

        @compile_contract(max_recompiles=0)
        def test_bare():
            raise AssertionError("must not run")
        """,
    )
    pytester.syspathinsert()

    result = pytester.runpytest_subprocess("--compile-contracts", "--contract-lanes=capture")

    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines([f"*capture, body (2 contracts): {reason.replace('[', '[[]')}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--contract-baselines="], "ERROR: --contract-baselines needs a folder"),
        (["--contract-accept-reason=why"], "ERROR: --contract-accept-reason does nothing without --contract-record"),
        (["--contract-record", "--contract-accept-reason= "], "ERROR: --contract-accept-reason needs a reason"),
    ],
    ids=["no-folder", "a-reason-for-nothing", "no-reason"],
)
def test_an_option_about_baselines_that_means_nothing_is_refused(
    pytester: pytest.Pytester, options: list[str], message: str
) -> None:
    result = pytester.runpytest("--compile-contracts", *options)

    result.stderr.fnmatch_lines([message])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_path_after_the_option_to_record_is_no_mode(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--compile-contracts", "--contract-record", "tests")

    result.stderr.fnmatch_lines(
        [
            "*argument --contract-record: 'tests' is not one of new, changed, all "
            "(before a path, write --contract-record=all[)]"
        ]
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    "option",
    [
        "--contract-baselines=x",
        "--contract-record",
        "--contract-accept-reason=x",
        "--contract-repeat=2",
        "--contract-set=torch._dynamo.config.recompile_limit=4",
    ],
)
def test_baselines_do_nothing_without_the_switch(pytester: pytest.Pytester, option: str) -> None:
    result = pytester.runpytest(option)

    result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]} does nothing without --compile-contracts"])


@pytest.mark.parametrize("given", ["0", "-1", "two", "1001", ""])
def test_a_number_of_repeats_that_means_nothing_is_refused(pytester: pytest.Pytester, given: str) -> None:
    result = pytester.runpytest("--compile-contracts", f"--contract-repeat={given}")

    said = f"argument --contract-repeat: expected a whole number from 1 to 1000, got {given!r}"
    result.stderr.fnmatch_lines([f"*{said}"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            "torch._dynamo.config.recompile_limit",
            "expected NAME=VALUE such as torch._dynamo.config.recompile_limit=4, a setting of torch._dynamo.config, "
            "torch._inductor.config, torch._functorch.config, torch.compiler.config, torch.fx.experimental._config",
            id="no-value",
        ),
        pytest.param(
            "os.environ=4",
            "expected NAME=VALUE such as torch._dynamo.config.recompile_limit=4, a setting of torch._dynamo.config, "
            "torch._inductor.config, torch._functorch.config, torch.compiler.config, torch.fx.experimental._config",
            id="no-setting-of-torch",
        ),
        pytest.param(
            "torch._dynamo.config.recompile_limit=four",
            "expected a value as Python writes it (True, 8, 'text'), got 'four'",
            id="no-value-of-python",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused(pytester: pytest.Pytester, given: str, message: str) -> None:
    assert refused(pytester, f"--contract-set={given}") == f"ERROR: --contract-set={given}: {message}"


def test_what_nobody_has_is_not_recorded(pytester: pytest.Pytester) -> None:
    options = ("--contract-record", "--contract-set=torch._dynamo.config.recompile_limit=4")

    assert refused(pytester, *options) == (
        "ERROR: --contract-record records what users run with, which --contract-set changes"
    )


# observing


def test_observing_a_suite_without_torch_does_not_import_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pathlib, sys

        def test_plain():
            pass

        def test_fails():
            assert 1 == 2, "my own assertion"
        """
    )
    pytester.makeconftest(
        """
        import json, pathlib, sys

        def pytest_unconfigure():
            loaded = [name for name in ("torch", "numpy", "triton") if name in sys.modules]
            pathlib.Path("loaded.json").write_text(json.dumps(loaded))
            pathlib.Path("finders.json").write_text(json.dumps([str(each) for each in sys.meta_path]))
        """
    )

    result = pytester.runpytest_subprocess("--compile-contracts", "--contract-observe", "--contract-report=out")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*= compile contracts: none measured =*", "no compile contract was measured"])
    assert json.loads(Path("loaded.json").read_text()) == []
    assert "pytest_compilecontract" not in Path("finders.json").read_text()
    assert json.loads(Path("out/receipt.json").read_text())["entries"] == []


def test_a_session_that_is_to_record_and_runs_no_contract_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    ran = [pytester.runpytest_subprocess("--compile-contracts", *record) for record in ((), ("--contract-record",))]

    assert [result.ret for result in ran] == [pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED]
    ran[1].stdout.fnmatch_lines(["ERROR: no contract ran, so there was nothing to record"])


BASELINE = """{"format": 1, "environments": {"here": {"torch": "2.11.0"}}, "contracts": {
    "test_old.py::test_compiled_once": {"body": {"environment": "here", "measurement": {"graphs": 1},
    "test": "test_old.py::test_compiled_once", "verdict": "held"}}}}"""


@pytest.mark.parametrize(
    ("body", "outcome", "verdict", "reason"),
    [
        pytest.param("pass", "passed", "unmeasured", "torch cannot be imported (no torch today)", id="passes"),
        pytest.param(
            "import torch", "failed", "broken", "the test failed in call: ImportError: no torch today", id="fails"
        ),
        pytest.param("import pytest; pytest.skip('today')", "skipped", "unmeasured", "today", id="skips"),
        pytest.param(
            "import pytest; pytest.xfail('today')", "xfailed", "unmeasured", "today", id="is-expected-to-fail"
        ),
    ],
)
def test_a_test_with_a_baseline_is_never_silently_missing(
    pytester: pytest.Pytester, body: str, outcome: str, verdict: str, reason: str
) -> None:
    pytester.makepyfile(
        torch="raise ImportError('no torch today')",
        test_old=f"""
        def test_compiled_once():
            {body}

        def test_other():
            pass
        """,
    )
    pytester.syspathinsert()
    pytester.mkdir("kept")
    file = pytester.path / "kept/torch2.11-cpu/test_old.json"
    file.parent.mkdir()
    file.write_text(BASELINE)

    result = pytester.runpytest_subprocess(
        "--compile-contracts", "--contract-observe", "--contract-baselines=kept", "--contract-report=out"
    )

    assert result.parseoutcomes()[outcome] == (2 if outcome == "passed" else 1)
    entries = json.loads(Path("out/receipt.json").read_text())["entries"]
    assert [(each["contract"], each["verdict"], each["reason"]) for each in entries] == [
        ("test_old.py::test_compiled_once", verdict, reason)
    ]
    own = {"phase": "call", "exception": "ImportError", "said": "no torch today"}
    assert entries[0]["own_failure"] == (own if verdict == "broken" else None)


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "inf", "1e9"])
def test_a_timeout_that_is_no_time_is_refused(pytester: pytest.Pytester, seconds: str) -> None:
    result = pytester.runpytest("--compile-contracts", f"--contract-timeout={seconds}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--contract-timeout: expected a number of seconds above 0, got '{seconds}'"])


# What pyproject.toml says

TABLE = """
    [tool.compilecontract]
    report = "out"
    waivers = "kept/waivers.toml"
"""


def test_what_the_project_says_is_as_if_typed_and_an_option_wins(pytester: pytest.Pytester) -> None:
    lane_project(pytester, TABLE.replace("waivers", "policy"))
    pytester.makepyfile(test_block=CONTRACT.format(limits='lanes=["eager"]'))

    runpytest_session(pytester, "--compile-contracts", "--contract-lanes=eager")
    own = sorted(path.name for path in (pytester.path / "out").iterdir())
    runpytest_session(pytester, "--compile-contracts", "--contract-lanes=eager", "--contract-report=typed")

    assert "receipt.json" in own
    assert (pytester.path / "typed" / "receipt.json").is_file()


def test_off_the_table_does_nothing(pytester: pytest.Pytester) -> None:
    lane_project(pytester, TABLE.replace('"out"', "1"))
    pytester.makepyfile(test_block="def test_it(): pass")

    assert pytester.runpytest_subprocess().ret == pytest.ExitCode.OK
    assert runpytest_session(pytester, "--compile-contracts").ret == pytest.ExitCode.USAGE_ERROR
    assert not (pytester.path / "out").exists()


def test_waivers_that_the_project_names_are_there(pytester: pytest.Pytester) -> None:
    lane_project(pytester, TABLE)

    result = runpytest_session(pytester, "--compile-contracts")

    result.stderr.fnmatch_lines(["ERROR: pyproject.toml: tool.compilecontract.waivers: *waivers.toml: no such file"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_waivers_are_read_where_the_project_says(pytester: pytest.Pytester) -> None:
    lane_project(pytester, TABLE)
    (pytester.path / "kept").mkdir()
    (pytester.path / "kept" / "waivers.toml").write_text("[[waiver]]\nfor = 1\n", encoding="utf-8")

    result = runpytest_session(pytester, "--compile-contracts")

    result.stderr.fnmatch_lines(["ERROR: *kept/waivers.toml:1: unknown key 'for' *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
