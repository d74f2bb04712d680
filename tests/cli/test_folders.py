"""Folders as `validate` and `show` take them: the project's own baselines, as they are in git."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.receipts import a_receipt, an_entry

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.receipt import environment_key
from pytest_compilecontract.files.receipt import write_receipt

pytest.importorskip("jsonschema")

KEPT = Path(__file__).resolve().parents[2] / "contracts" / "baselines"


def test_a_folder_is_validated_with_all_that_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(KEPT, tmp_path / "kept")
    (tmp_path / "kept" / "torn.json").write_text("{", encoding="utf-8")
    (torn := tmp_path / "other" / "0123456789ab.json").parent.mkdir()
    torn.write_text('{"format": 1, "torch": null, "defaults": {"a": "1"}}', encoding="utf-8")

    codes = [main(["validate", str(tmp_path / name)]) for name in ("kept", "other")]
    (tmp_path / "kept" / "torn.json").unlink()
    whole = main(["validate", str(tmp_path / "kept")])

    said = capsys.readouterr()
    assert (codes, whole) == ([2, 2], 0)
    assert "of torch)" in said.out
    assert "torn.json: not JSON" in said.err
    assert "0123456789ab.json: does not match the digest in its name (delete it and record again)" in said.err


def test_a_folder_without_documents_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path)]) == 2
    said = f"compilecontract: {tmp_path}: contains no receipt, baseline, matrix or waivers.toml\n"
    assert capsys.readouterr().err == said


def test_of_several_environments_the_receipts_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = a_receipt(an_entry())
    (environment,) = receipt.environments.values()
    write_receipt(tmp_path / "receipt.json", receipt)
    monkeypatch.chdir(tmp_path)
    for key in (environment_key(environment), "torch2.99-cpu"):
        (tmp_path / "contracts" / "baselines" / key).mkdir(parents=True)

    assert main(["show", "receipt.json"]) == 0

    own = Path("contracts", "baselines", environment_key(environment))
    assert f"compilecontract compare {own} receipt.json" in capsys.readouterr().out


def test_show_takes_a_folder_of_a_receipt_or_of_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(tmp_path / "receipt.json", a_receipt(an_entry()))

    codes = [main(["show", str(each)]) for each in (tmp_path, KEPT / "torch2.13-cpu")]

    assert codes == [0, 0]
    assert "lanes: 1 held" in capsys.readouterr().out


def test_show_tells_each_of_several_environments_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("torch2.11-cuda-sm90", "torch2.13-cpu")
    alone = []
    for name in names:
        main(["show", str(KEPT / name)])
        alone.append(f"{name}:\n{capsys.readouterr().out}")

    code = main(["show", str(KEPT)])

    assert code == 0
    assert capsys.readouterr().out == "\n".join(alone)


def test_show_names_lanes_in_their_own_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [an_entry(lane=lane) for lane in ("mine", "inductor", "aot", "capture")]
    write_receipt(tmp_path / "receipt.json", a_receipt(*entries))

    codes = [main(["show", str(tmp_path)]), main(["show", "-v", str(tmp_path)])]

    plain, _, lines = capsys.readouterr().out.partition("lanes: 4 held")
    assert codes == [0, 0]
    assert "held: capture, aot, inductor, mine" in plain
    assert [line.split()[1] for line in lines.splitlines() if line.startswith("  held")] == [
        *("capture", "aot", "inductor", "mine"),
    ]
