# SPDX-License-Identifier: Apache-2.0
"""What report.py makes of a fixed build/peers.json. `./dev test` runs it."""
import pathlib
import struct
import tempfile
import unittest

import compare
import gguf_facts
import load_client
import report

LIMITS = {"threads": 2, "read_gb_per_s": 50.0, "fp32_gflop_per_s": 250.0, "bf16_gflop_per_s": 500.0, "int8_gop_per_s": 1000.0}
FACTS = {"weight_bytes": 400e6, "prefill_weights": 350e6, "decode_weights": 480e6, "kv_bytes_per_token": 12288}


def unit(engines, **more):
    return {"engines": engines, "seconds": {engine: 30.0 for engine in engines}, "commands": {engine: [f"{engine} bench"] for engine in engines},
            "errors": {}, "limits": LIMITS, "limits_after": LIMITS, "drift": 0.0, **more}


def rounds(part, name, *each):
    return [{"parts": {part: {name: unit(engines)}} if engines else {}, "void": []} for engines in each]


def row_of(text, label):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


class Ratios(unittest.TestCase):
    def test_are_medians_of_the_rounds_that_have_both(self):
        taken = rounds("in-process", "q4_k_m", {"inferd": {"decode_1": 80.0}, "llama": {"decode_1": 40.0}}, {"inferd": {"decode_1": 300.0}},
                       {}, {"inferd": {"decode_1": 60.0}, "llama": {"decode_1": 20.0}}, {"inferd": {}, "llama": {"decode_1": 1.0}})
        text = report.markdown({"rounds": taken, "facts": {"q4_k_m": FACTS}})
        # 50 GB/s over 400 MB and 128 tokens of K and V are 124.5 tokens a second; 80 is the median of 80, 300 and 60.
        self.assertEqual(row_of(text, "decode 1, tok/s"), ["80.0 (60.0..300.0)", "20.0 (1.0..40.0)", "2.50", "64%"])
        self.assertIn("q4_k_m: 4 rounds", text)

    def test_shares_of_prefill_are_of_the_format_s_arithmetic(self):
        for form, peak in (("q8_0", 1000e9), ("bf16", 500e9)):
            taken = rounds("in-process", form, {"inferd": {"prefill_512": peak / 2 / 350e6 / 2}})
            self.assertEqual(row_of(report.markdown({"rounds": taken, "facts": {form: FACTS}}), "prefill 512, tok/s")[1], "50%")

    def test_many_streams_are_bound_by_arithmetic(self):
        self.assertAlmostEqual(report.decode_limit("q4_k_m", 64, 128)(FACTS, LIMITS), 1000e9 / (2 * 480e6))

    def test_the_larger_limit_of_before_and_after_counts(self):
        taken = [{"parts": {"ranks": {"q4_k_m": unit({}, limits_after={**LIMITS, "read_gb_per_s": 60.0})}}}]
        self.assertEqual(report.limits(taken[0], "ranks", "q4_k_m")["read_gb_per_s"], 60.0)


class Sections(unittest.TestCase):
    def test_contexts_show_what_k_and_v_add(self):
        # 20 ms at 128 tokens, 24 ms at 8,192: 8,064 tokens of 12,288 bytes in 4 ms are 24.8 GB/s, half of the limit.
        taken = rounds("contexts", "q4_k_m 8192", {"inferd": {"decode_128": 50.0, "decode_8192": 1 / 0.024}, "llama": {"decode_8192": 20.0}})
        cells = row_of(report.markdown({"rounds": taken, "facts": {"q4_k_m": FACTS}}), "q4_k_m")
        self.assertEqual(cells, ["8,192", "41.7", "20.0", "2.08", "42%", "50%", "20%", "–"])

    def test_ranks_are_beside_two_threads(self):
        taken = rounds("ranks", "q4_k_m", {"2 threads": {"decode_8": 200.0}, "tp 2": {"decode_8": 190.0}, "pp 2": {}})
        self.assertEqual(row_of(report.markdown({"rounds": taken}), "decode 8, tok/s"), ["200.0", "190.0", "0.95"])

    def test_an_all_reduce_has_its_barrier_beside_it(self):
        taken = rounds("all-reduce", "float", {"shm": {"4096": 1.25, "65536": 9.0, "barrier": 0.4}})
        text = report.markdown({"rounds": taken})
        self.assertEqual([row_of(text, label)[0] for label in ("4 KiB, us", "64 KiB, us", "barrier, us")], ["1.25", "9.00", "0.40"])

    def test_http_rows_are_those_of_the_workloads_taken(self):
        taken = rounds("http", "bf16", {"inferd": {"c16_p128": {"tok_s": 130.0, "gap_max_ms": 90.0}, "start_s": 0.5},
                                        "vllm": {"c16_p128": {"tok_s": 100.0, "gap_max_ms": 900.0}}})
        text = report.markdown({"rounds": taken})
        self.assertEqual(row_of(text, "c16_p128: longest gap, ms")[:3], ["90", "900", "0.10"])
        self.assertEqual(row_of(text, "start to ready, s")[:3], ["0.50", "–", "–"])
        self.assertNotIn("| c16_p512:", text)

    def test_what_failed_or_was_void_is_said(self):
        failed = unit({"inferd": {"decode_1": 50.0}}, errors={"llama": "SystemExit: /opt/x/llama-bench failed (1):\nmore"})
        void = [{"part": "in-process", "unit": name, "errors": errors} for name, errors in (
            ("q8_0", {"openvino": "RuntimeError: no memory"}), ("bf16", {}), ("bf16", {}), ("bf16", {}))]
        void.append({"part": "in-process", "unit": "q8_0", "lacks": ["inferd"], "errors": {"inferd": "CommandFailed: it ended"}})
        text = report.markdown({"rounds": [{"parts": {"in-process": {"q8_0": failed}}, "void": void}]})
        for line in ("in-process, q8_0: llama failed: SystemExit: llama-bench failed (1):", "limits drifted: 4 attempts.",
                     "an engine failed that had figures before: 1 attempt.", "Round 1 is without in-process, bf16: every attempt was void.",
                     "in-process, q8_0: openvino failed in a void attempt: RuntimeError: no memory",
                     "in-process, q8_0: inferd failed in a void attempt: CommandFailed: it ended"):
            self.assertIn(line, text)
        self.assertNotIn("is without in-process, q8_0", text)
        self.assertIn("| in-process | q8_0 | 0.5 | inferd 30 |", text)

    def test_without_prefill_and_decode_there_are_no_shares(self):
        taken = rounds("http", "q8_0", {"inferd": {"c16_p128": {"tok_s": 130.0}}, "openvino": {"decode_2": {"tok_s": 9.0}}})
        self.assertNotIn("of the limit |", report.markdown({"rounds": taken, "facts": {"q8_0": FACTS}}))
        taken[0]["parts"]["http"]["q8_0"]["engines"]["inferd"]["decode_1"] = {"tok_s": 62.25}
        self.assertIn("inferd, of the limit |", report.markdown({"rounds": taken, "facts": {"q8_0": FACTS}}))

    def test_folders_of_files_are_left_out_and_urls_are_not(self):
        for text, shown in (("/opt/x/bench failed", "bench failed"), ("no '/opt/x/y.gguf'", "no 'y.gguf'"),
                            ("GET http://127.0.0.1/x/y of /opt/z", "GET http://127.0.0.1/x/y of z"), ("127.0.0.1:80/x/y", "127.0.0.1:80/x/y")):
            self.assertEqual(report.without_folders(text), shown)

    def test_nothing_measured_is_a_report_too(self):
        self.assertIn("0 rounds", report.markdown({"rounds": []}))


class Page(unittest.TestCase):
    def test_keeps_what_is_outside_of_the_markers(self):
        page = f"# Head\n{report.BEGIN}\nold\n{report.END}\nby hand\n"
        self.assertEqual(report.with_generated(page, "new\n"), f"# Head\n{report.BEGIN}\n\nnew\n\n{report.END}\nby hand\n")

    def test_without_markers_is_refused(self):
        with self.assertRaises(ValueError):
            report.with_generated("# Head\n", "new")

    def test_the_real_page_has_them(self):
        page = compare.PAGE.read_text()
        self.assertEqual((page.count(report.BEGIN), page.count(report.END)), (1, 1))


class Figures(unittest.TestCase):
    def test_a_steady_rate_is_of_the_time_when_all_streams_ran(self):
        early, late = load_client.Answer(0.0), load_client.Answer(0.0)
        early.times, late.times = [1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]
        early.tokens = late.tokens = 4
        self.assertEqual(load_client.steady_rate([early, late]), 2.0)

    def test_facts_of_a_gguf_header(self):
        def text(word):
            return struct.pack("<Q", len(word)) + word.encode()

        settings = {"embedding_length": 64, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2}
        head = b"GGUF" + struct.pack("<IQQ", 3, 3, 1 + len(settings)) + text("general.architecture") + struct.pack("<I", 8) + text("toy")
        for key, number in settings.items():
            head += text(f"toy.{key}") + struct.pack("<II", 4, number)
        for name, dimensions in (("token_embd.weight", (64, 100)), ("blk.0.attn_q.weight", (64, 64)), ("blk.0.attn_norm.weight", (64,))):
            head += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, 0, 0)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "toy.gguf"
            path.write_bytes(head)
            self.assertEqual(gguf_facts.facts(path), {"prefill_weights": 4096, "decode_weights": 4096 + 6400, "kv_bytes_per_token": 2 * 2 * 2 * 16 * 2})


if __name__ == "__main__":
    unittest.main()
