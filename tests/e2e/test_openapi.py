# SPDX-License-Identifier: Apache-2.0
"""schemathesis over /openapi.json: no answer of 500 or above, and none that the document does not tell."""
import os
import pathlib
import subprocess
import sys

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
TIMEOUT_S = 300


def test_answers_are_as_documented(start, tmp_path):
    server = start("--max-num-seqs", "32", "--files-dir", str(tmp_path / "files"))
    tool = pathlib.Path(sys.executable).parent / "schemathesis"
    # The requests are drawn from a fixed seed; generation itself is kept short by the server's small model.
    done = subprocess.run(
        [tool, "run", server.url + "/openapi.json", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing",
         "--max-examples", "15", "--seed", "20261129", "--generation-database", "none", "--request-timeout", "30",
         "--suppress-health-check", "all", "--continue-on-failure", "--no-color"],
        cwd=tmp_path, env={**os.environ, "PYTHONWARNINGS": "ignore"}, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.status("/readyz") == 200
    server.wait_metric("inferd_kv_pages_used", 0, 10)
    server.stop()
