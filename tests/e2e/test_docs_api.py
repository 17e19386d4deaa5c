# SPDX-License-Identifier: Apache-2.0
"""Every curl of docs/api.md runs against a live server and brings what it promises."""

import json
import pathlib
import re
import subprocess

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "api.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
# Shows the headers of the last answer beside its body, and fails on a status of 400 or more.
PROLOGUE = 'set -euo pipefail\ncurl() { command curl -sS --fail-with-body --max-time 60 -D "$HEADERS" "$@"; }\n'


def check(content_type, body):
    if content_type == "application/json":
        json.loads(body)
    elif content_type == "text/event-stream":
        lines = [line for line in body.splitlines() if line.startswith("data: ")]
        assert len(lines) > 1, body
        for line in lines:
            assert line == "data: [DONE]" or json.loads(line[6:])
    elif content_type == "application/octet-stream":
        assert body == "{}\n"
    elif content_type == "application/x-ndjson":
        assert json.loads(body.splitlines()[-1])["done"] is True
    else:
        assert content_type == "text/plain" and "# TYPE" in body, content_type


def test_the_page_has_its_curls():
    assert len(BLOCKS) > 25
    assert all("curl " in block for block in BLOCKS)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_curl(server, tmp_path, number):
    block = BLOCKS[number].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}").replace("qwen2.5-coder-0.5b", "toy")
    run = subprocess.run(["bash", "-c", PROLOGUE + block], capture_output=True, text=True, timeout=120,
                         env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HEADERS": str(tmp_path / "headers")})
    assert run.returncode == 0, f"{block}\n{run.stdout}{run.stderr}"
    headers = (tmp_path / "headers").read_text().lower()
    assert headers.split()[1] == "200", headers
    check(re.search(r"content-type: ([^;\r\n]+)", headers).group(1), run.stdout)
