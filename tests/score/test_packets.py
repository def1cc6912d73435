"""Runs of a packet simulator: one flow by hand, and what is refused."""

import gzip
from pathlib import Path

import pytest

from etude.decide.score import score

HEAD = (
    "run_id,simulator,protocol,routing,topology,link_gbps,hop_latency_us,switch_latency_us,header_bytes,ecn_low_bytes,"
    "pfc_low_bytes,pfc_high_bytes,fct_mean_us,fct_p99_us,fct_max_us,pfc_pauses\n"
)
RUN = "{},htsim,{},{},k4,100,1,0,64,,49152,61440,{us},{us},{us},0\n"
FLOWS = "flow,src,dst,bytes,start_us,finish_us,path,ack_path\n"


def runs(place: Path, flows: str) -> Path:
    (place / "flows").mkdir()
    (place / "flows/r1.csv.gz").write_bytes(gzip.compress((FLOWS + flows).encode()))
    rows = [("r1", "roce", "ecmp_flow"), ("r2", "roce", "ecmp_flow"), ("r1", "dcqcn", "ecmp_flow")]
    path = place / "runs.csv"
    path.write_text(HEAD + "".join(RUN.format(*row, us=14.34368) for row in rows))
    return path


def test_a_flow_in_a_pod_takes_its_packets_once_and_one_more_per_hop(tmp_path: Path):
    """64,000 B are 16 packets of 4,160 B, 0.3328 us each at 100 Gb/s; 4 links of 1 us there and back; the ACK of 64 B
    on 4 links: 8 + (16 + 3) * 0.3328 + 4 * 0.00512 = 14.34368 us."""
    found = score(runs(tmp_path, "1,0,2,64000,0,14.34368,LS0->US0 US0->LS1,LS1->US1 US1->LS0\n"))
    assert found.kind == "packets"
    first = found.rows[0]
    assert first["predicted"] == dict.fromkeys(("fct_mean_us", "fct_p99_us", "fct_max_us"), 14.34368)
    assert first["assumed"] == ["flows and ACKs took the paths of the run"]
    assert "the flows of the run are missing" in found.rows[1]["refused"]
    assert found.rows[2]["refused"] == "senders of `dcqcn` are not modelled"


def test_a_flow_between_switches_without_a_path_is_refused(tmp_path: Path):
    found = score(runs(tmp_path, "1,0,2,64000,0,14,,\n"))
    assert "flow 1 has no path" in found.rows[0]["refused"]


def test_one_more_packet_where_the_bytes_are_a_multiple(tmp_path: Path):
    """8,192 B: three packets, of which the second ACK ends the flow. The other flow's only packet goes between the
    first two: it is through after three packet times (two in line, one on the second link), the other after four."""
    text = "1,0,1,8192,0,0,,\n2,0,1,100,0,0,,\n"
    found = score(runs(tmp_path, text)).rows[0]["predicted"]
    # 4 us of wires, and two ACKs
    assert found["fct_max_us"] == pytest.approx(4 + 4 * 0.3328 + 2 * 0.00512, abs=1e-9)
    first_us = found["fct_mean_us"] * 2 - found["fct_max_us"]
    assert first_us == pytest.approx(4 + 3 * 0.3328 + 2 * 0.00512, abs=1e-9)
