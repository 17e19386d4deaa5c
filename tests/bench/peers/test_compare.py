# SPDX-License-Identifier: Apache-2.0
"""What compare.py still has to measure and how it ends, over made-up engines; and servers that fail. `./dev test` runs it."""
import contextlib
import io
import os
import pathlib
import signal
import sys
import tempfile
import unittest
from unittest import mock

import compare
import install
import load_client
import parts
import report
import servers
from test_report import rounds, unit

ANSWERS = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Quiet(unittest.TestCase):
    def setUp(self):
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.folder / "peers.json"


class FakeBench:
    """One unit, q8_0 in process. `failing` engines have no figures; `drifts`: of the first measurements."""

    def __init__(self, failing, drifts):
        self.failing, self._drifts, self.measured = failing, iter(drifts), []

    def __call__(self, arguments, engines):
        """In place of parts.Bench's constructor."""
        self.arguments, self.engines = arguments, engines
        return contextlib.nullcontext(self)

    def facts(self, _form):
        return {}

    def units(self, _part):
        return [("q8_0", [e for e in parts.FORMATS["q8_0"] if e in self.engines], None)]

    def measure(self, engines, _function, _number):
        self.measured.append(engines)
        figure = 50.0 + len(self.measured)
        return unit({e: {"decode_1": figure} for e in engines if e not in self.failing}, drift=next(self._drifts, 0.0),
                    errors={e: "CommandFailed: it ended" for e in engines if e in self.failing})


class Resume(Quiet):
    def take(self, engines, *flags, failing=(), drifts=()):
        """compare.measure's one round; (the sets of engines measured, {engine: figure} of the unit afterwards)"""
        bench = FakeBench(failing, drifts)
        arguments = compare.parse_arguments(["--cache", "x", "--json", str(self.path), "--part", "in-process", "--rounds", "1",
                                             "--formats", "q8_0", "--engines", engines, *flags])
        with mock.patch.object(parts, "Bench", bench):
            data = compare.measure(arguments)
        self.assertEqual(list(data["facts"]), ["q8_0"])
        self.round = data["rounds"][0]
        found = report.unit_of(self.round, "in-process", "q8_0") or {"engines": {}}
        return bench.measured, {engine: figures["decode_1"] for engine, figures in found["engines"].items()}

    def test_what_is_there_is_not_taken_again(self):
        self.take("inferd,llama")
        self.assertEqual(self.take("inferd", "--resume"), ([], {"inferd": 51.0, "llama": 51.0}))

    def test_one_more_engine_is_taken_with_those_that_are_there(self):
        self.take("inferd,llama")
        measured, figures = self.take("openvino", "--resume", drifts=[0.5])
        self.assertEqual(measured, [["inferd", "llama", "openvino"]] * 2)
        self.assertEqual(figures, {"inferd": 52.0, "llama": 52.0, "openvino": 52.0})

    def test_figures_stay_where_the_new_ones_lack_an_engine(self):
        self.take("inferd,llama")
        _, figures = self.take("openvino", "--resume", failing=["llama"])
        self.assertEqual(figures, {"inferd": 51.0, "llama": 51.0})
        self.assertEqual([(void["lacks"], list(void["engines"])) for void in self.round["void"]], [(["llama"], ["inferd", "openvino"])])

    def test_an_engine_that_fails_is_tried_once_more(self):
        self.take("inferd,llama", failing=["llama"])
        self.assertEqual(len(self.take("inferd,llama", "--resume", failing=["llama"])[0]), 1)
        self.assertEqual(self.take("inferd,llama", "--resume")[0], [])

    def test_nor_oftener_where_the_figures_of_before_stay(self):
        self.take("inferd")
        self.take("inferd,llama", "--resume", failing=["inferd", "llama"])
        self.take("inferd,llama", "--resume", failing=["inferd", "llama"])
        self.assertEqual(self.take("inferd,llama", "--resume"), ([], {"inferd": 51.0}))

    def test_of_a_file_without_counts_an_error_is_one_failure(self):
        old = unit({"inferd": {"decode_1": 1.0}}, errors={"llama": "SystemExit: it ended"})
        one_round = {"parts": {"in-process": {"q8_0": old}}, "void": []}
        self.assertEqual(compare.due(one_round, "in-process", ("q8_0", ["inferd", "llama"], None), {"inferd", "llama"}), ["inferd", "llama"])
        self.assertEqual((compare.failures(old, "llama"), compare.failures(old, "inferd")), (1, 0))

    def test_a_unit_stays_if_an_engine_of_it_cannot_be_measured_again(self):
        (taken,) = rounds("http", "q8_0", {"llama": {"start_s": 1.0}})
        self.assertEqual(compare.due(taken, "http", ("q8_0", ["inferd", "openvino"], None), {"inferd"}), [])

    def test_drift_makes_a_unit_void_and_it_is_taken_anew(self):
        measured, figures = self.take("inferd", drifts=[0.5, 0.02])
        self.assertEqual((len(measured), figures), (2, {"inferd": 52.0}))
        self.assertEqual([void["drift"] for void in self.round["void"]], [0.5])

    def test_a_unit_that_drifts_on_is_given_up(self):
        measured, figures = self.take("inferd", drifts=[0.5] * 9)
        self.assertEqual((len(measured), figures), (compare.MAX_TRIES, {}))

    def test_old_rounds_are_kept_or_put_aside(self):
        recorder = compare.Recorder(self.path, keep=False)
        recorder.round(1)
        recorder.save()
        self.assertEqual(len(compare.Recorder(self.path, keep=True).data["rounds"]), 2)
        self.assertEqual(compare.Recorder(self.path, keep=False).data["rounds"], [])
        self.assertTrue((self.folder / "peers.old.json").exists())


class Needs(Quiet):
    def arguments(self, *flags):
        return compare.parse_arguments(["--cache", str(self.folder), *flags])

    def test_facts_are_of_formats_that_have_shares(self):
        def formats(*flags):
            return parts.formats_of(self.arguments(*flags), parts.WITH_SHARES)

        self.assertEqual(formats("--part", "ranks,all-reduce"), [])
        self.assertEqual(formats("--part", "contexts,ranks"), ["q4_k_m"])
        self.assertEqual(formats("--part", "http", "--formats", "bf16"), ["bf16"])
        self.assertEqual(formats(), list(parts.FORMATS))

    def test_llama_cpp_is_built_if_it_is_measured_or_converts(self):
        with mock.patch.object(install, "llama", return_value=self.folder) as llama, mock.patch.object(install, "run", self.make):
            parts.Bench(self.arguments("--part", "contexts"), ["inferd"])
            llama.assert_not_called()
            parts.Bench(self.arguments("--part", "contexts"), ["inferd", "llama"])
            self.assertEqual(llama.call_count, 1)
            for _ in range(2):  # the second time the file is there
                bench = parts.Bench(self.arguments("--part", "in-process", "--formats", "q8_0"), ["inferd"])
            self.assertEqual(llama.call_count, 2)
            self.assertEqual(list(bench.paths), ["q4_k_m", "q8_0"])

    @staticmethod
    def make(*command):
        pathlib.Path(command[-2]).touch()


class Endings(Quiet):
    def test_an_engine_that_fails_leaves_the_others_their_figures(self):
        one = parts.Unit()
        with one.take("llama"):
            install.run("false")
        with one.take("inferd"):
            one.result["engines"]["inferd"] = {"decode_1": 50.0}
        self.assertEqual(one.result["errors"], {"llama": "CommandFailed: false failed (1):\n"})
        self.assertEqual(list(one.result["engines"]), ["inferd"])

    def test_sigterm_is_no_engine_s_failure_and_unwinds(self):
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        compare.end_in_order_on_sigterm()
        left, one = [], parts.Unit()
        with self.assertRaises(SystemExit) as ended, contextlib.ExitStack() as stack:
            stack.callback(left.append, "server")
            with one.take("vllm"):
                os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual((ended.exception.code, left, one.result["errors"]), (128 + signal.SIGTERM, ["server"], {}))

    def test_a_report_of_nothing_is_a_sentence(self):
        for text, sentence in ((None, "is not there"), ("{", "is no JSON"), ('{"rounds": [{"in_process": {}}]}', "of an earlier form")):
            if text is not None:
                self.path.write_text(text)
            with self.assertRaisesRegex(SystemExit, sentence):
                compare.main(["--report-only", "--json", str(self.path)])

    def test_the_page_stays_where_nothing_has_figures(self):
        page = self.folder / "page.md"
        page.write_text(f"{report.BEGIN}\nold\n{report.END}\n")
        recorder = compare.Recorder(self.path, keep=False)
        recorder.round(0)["parts"]["ranks"] = {"q4_k_m": unit({}, errors={"tp 2": "CommandFailed: it ended"})}
        recorder.save()
        flags = ["--report-only", "--write-docs", "--json", str(self.path)]
        with mock.patch.object(compare, "PAGE", page), contextlib.redirect_stdout(io.StringIO()):
            with self.assertRaisesRegex(SystemExit, "no unit"):
                compare.main(flags)
            self.assertIn("old", page.read_text())
            recorder.data["rounds"] += rounds("ranks", "q4_k_m", {"tp 2": {"decode_1": 7.0}})
            recorder.save()
            compare.main(flags)
        self.assertIn("| decode 1, tok/s | 7.0 |", page.read_text())


class FakeServer:
    url, model, shown, start_s = "", "m", "serve", 1.0

    def __init__(self):
        self.running, self.said = True, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said.append("end")
        self.running = False

    def is_running(self):
        return self.running

    def pause(self):
        self.said.append("pause")

    def resume(self):
        self.said.append("resume")

    def memory_mib(self):
        return 100.0


class Http(Quiet):
    """Bench.over_http with servers that are none."""

    def setUp(self):
        super().setUp()
        self.started = []
        self.enterContext(mock.patch.dict(parts.HTTP_ENGINES, {engine: self.start for engine in ("inferd", "vllm")}))
        self.enterContext(mock.patch.multiple(install, convert=lambda *_: {"hf": "", "bf16": ""}, torch_python=lambda _: ""))
        self.first = self.enterContext(mock.patch.object(load_client, "first_token_s", return_value=0.5))
        self.load = self.enterContext(mock.patch.object(load_client, "measure", return_value={"c1_p128": {"tok_s": 1.0}}))
        self.bench = self.enterContext(parts.Bench(compare.parse_arguments(["--cache", "x"]), ["inferd", "vllm"]))

    def start(self, *_):
        self.started.append(FakeServer())
        return self.started[-1]

    def take(self, engine):
        return self.bench.over_http(parts.Unit(), engine, "bf16", ["c1_p128"], 0)

    def test_a_server_is_kept_and_resumed(self):
        self.assertEqual(self.take("vllm"), {"start_s": 1.0, "first_token_s": 1.5, "ready_mib": 100.0, "c1_p128": {"tok_s": 1.0}, "memory_mib": 100.0})
        self.assertEqual(self.take("vllm"), {"c1_p128": {"tok_s": 1.0}, "memory_mib": 100.0})
        self.assertEqual([server.said for server in self.started], [["pause", "resume", "pause"]])

    def test_one_that_died_while_it_was_kept_is_started_anew(self):
        self.take("vllm")
        self.started[0].running = False
        self.assertEqual(self.take("vllm")["start_s"], 1.0)
        self.assertEqual([server.said for server in self.started], [["pause", "end"], ["pause"]])

    def test_one_that_dies_under_load_is_not_kept_and_tells_why(self):
        def die(*_):
            self.started[-1].running = False
            raise ConnectionResetError("gone")

        self.load.side_effect = die
        for number in (1, 2):
            with self.assertRaisesRegex(ConnectionResetError, "gone"):
                self.take("vllm")
            self.assertEqual([server.said for server in self.started], [["end"]] * number)

    def test_none_runs_on_if_its_first_token_fails(self):
        self.first.side_effect = RuntimeError("500")
        for engine in ("inferd", "vllm"):
            with self.assertRaisesRegex(RuntimeError, "500"):
                self.take(engine)
        self.assertEqual([server.said for server in self.started], [["end"], ["pause"]])


class Processes(Quiet):
    def test_a_server_that_dies_while_it_is_stopped(self):
        with servers.Server([sys.executable, "-c", ANSWERS, "{port}"], "m") as server:
            server.pause()
            self.assertTrue(server.is_running())
            server._process.kill()
            server._process.wait(20)
            self.assertFalse(server.is_running())
            server.pause()
            server.resume()
            server.__exit__()

    def test_one_that_never_answers_is_a_sentence_and_none_is_left(self):
        server = servers.Server([sys.executable, "-c", "raise SystemExit('no model')"], "m")
        with self.assertRaisesRegex(RuntimeError, "no model"):
            server.__enter__()
        self.assertFalse(os.path.exists(server._log.name))

    def test_an_interruption_of_the_start_ends_it(self):
        server = servers.Server([sys.executable, "-c", "import time; time.sleep(60)"], "m")
        with mock.patch.object(server, "_healthy", side_effect=SystemExit(143)), self.assertRaises(SystemExit):
            server.__enter__()
        self.assertFalse(server.is_running())


if __name__ == "__main__":
    unittest.main()
