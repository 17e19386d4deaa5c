# SPDX-License-Identifier: Apache-2.0
"""docs/conformance.md names tests that exist, and every test that says which case it is."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (\d\d) \|.*\| (`.*`) \|$", (ROOT / "docs" / "conformance.md").read_text(), re.MULTILINE)
NAMED = {(case, *name.split("::")) for case, names in ROWS for name in re.findall(r"`([^`]*)`", names)}
CASES = {f"{number:02}" for number in [*range(1, 40, 2), 51, 53, 55, 57, 69]}


def python_tests(path):
    """{name: docstring} of the tests in a file."""
    return {node.name: ast.get_docstring(node) or "" for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_case_has_tests():
    assert {case for case, _ in ROWS} == CASES and len(ROWS) == len(CASES)


def test_the_named_tests_exist():
    for case, file, name in NAMED:
        if file.endswith(".py"):
            assert name in python_tests(ROOT / "tests" / "e2e" / file), (case, file, name)
        else:
            paths = [*(ROOT / "tests" / "unit").rglob(file), *(ROOT / "tests" / "cluster").rglob(file)]
            assert any(re.search(rf"^TEST(_[FP])?\(\w+, {name}\)", path.read_text(), re.MULTILINE) for path in paths), (case, file, name)


def test_the_cases_are_all_named():
    for path in sorted((ROOT / "tests" / "e2e").glob("test_cases_*.py")):
        for name, told in python_tests(path).items():
            cases = re.findall(r"Case (\d\d)", told)
            assert cases, f"{path.name}::{name} does not say which case it is"
            for case in cases:
                assert (case, path.name, name) in NAMED, f"docs/conformance.md lacks {path.name}::{name} for case {case}"
