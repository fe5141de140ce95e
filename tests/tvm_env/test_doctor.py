import json
import signal
import sys
from types import SimpleNamespace

import pytest

from roller_tvm.cli import main
from roller_tvm.codegen.compilers import Compiler
from roller_tvm.tvm_env import compiler, doctor
from roller_tvm.tvm_env.doctor import examine
from roller_tvm.tvm_env.locate import Line, TvmFound


def by_name(report):
    return {check.name: check for check in report.checks}


def test_without_tvm_says_the_command_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_tvm", lambda: None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "MISSING TVM" in out and "mend: roller-tvm install-tvm" in out


def test_crashing_tvm_is_reported_not_suffered(monkeypatch, tmp_path):
    script = tmp_path / "probe.py"
    script.write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    monkeypatch.setattr(doctor.probe, "__file__", str(script))
    monkeypatch.setattr(doctor, "find_tvm", lambda: TvmFound(tmp_path, "0.17.0", Line.RELAY, True))
    check = by_name(examine())["import tvm"]
    assert not check.found and "signal 11" in check.detail and check.remedy == "roller-tvm install-tvm"


def test_missing_compiler_is_needed_and_mended(monkeypatch):
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: name if name == "apt-get" else None)
    monkeypatch.setattr(compiler.os, "geteuid", lambda: 1000)
    check = doctor._compiler()
    assert (check.found, check.needed, check.remedy) == (False, True, "sudo apt-get install -y g++")


def test_a_compiler_that_is_named_is_the_one(monkeypatch):
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.find_compiler() == sys.executable
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler.find_compiler() is None and not doctor._compiler().found  # TVM would not try another


def test_onnx_without_mapping_counts_as_missing(monkeypatch):
    monkeypatch.setattr(doctor, "_distribution", lambda name: "1.19.0")
    monkeypatch.setattr(doctor, "_importable", lambda module: module != "onnx.mapping")
    onnx = next(check for check in doctor._packages(Line.RELAY) if check.name == "onnx")
    assert not onnx.found and "onnx==1.18.0" in onnx.remedy


def test_every_missing_needed_thing_has_a_remedy(monkeypatch, tmp_path):
    nothing = {"info": {}, "codegen": [], "parts": [], "te_schedules": False, "pool": None}
    for line in (Line.RELAY, Line.RELAX):
        checks = doctor._capabilities(TvmFound(tmp_path, "0", line, False), nothing)
        assert checks and all(check.remedy for check in checks if check.needed and not check.found)


def test_cuda_compilers_are_those_that_would_be_taken(monkeypatch):
    """NVRTC from a wheel was not seen where no TVM had loaded it, and its remedy mended nothing."""
    monkeypatch.setattr(doctor, "find_compilers", lambda: (Compiler("nvrtc", (12, 9), "/wheel/libnvrtc.so.12", ()),))
    nvcc, nvrtc = doctor._cuda_compilers()
    assert nvrtc.found and nvrtc.detail == "12.9, /wheel/libnvrtc.so.12" and not nvcc.found
    monkeypatch.setattr(doctor, "find_compilers", lambda: ())
    assert "pip install nvidia-cuda-nvrtc-cu12" in doctor._cuda_compilers()[1].remedy


@pytest.mark.tvm
def test_real_environment(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] and report["tvm"]["line"] == "relay"
    found = {check["name"] for check in report["checks"] if check["found"]}
    assert {"llvm", "Relay", "TE schedules", "auto_scheduler", "C compiler"} <= found


@pytest.mark.relax
def test_real_environment_of_the_relax_line(capsys):
    assert main(["doctor", "--json", "--line", "relax"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] and report["tvm"]["line"] == "relax"
    checks = {check["name"]: check for check in report["checks"]}
    for name in ("llvm", "cuda", "Relax", "MetaSchedule", "apache-tvm-ffi", "cloudpickle", "psutil", "target"):
        assert checks[name]["found"], name
    assert '"mcpu": "' in checks["target"]["detail"] and "generic" not in checks["target"]["detail"]


def relax_here(monkeypatch, tmp_path, version="0.27.0.post1"):
    monkeypatch.setattr(doctor, "find_tvm", lambda: TvmFound(tmp_path, version, Line.RELAX, False))
    monkeypatch.setattr(doctor, "_run_probe", lambda: ({}, "crashed (signal 11): Segmentation fault"))


def test_a_pair_that_crashes_is_told_with_the_one_command(monkeypatch, tmp_path, capsys):
    relax_here(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor, "installed_ffi", lambda: "0.1.15.post2")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "0.1.15.post2 with apache-tvm 0.27.0.post1: save_json" in out
    assert "mend: pip install apache-tvm-ffi==0.1.14.post1" in out


def test_a_version_that_nobody_tried_is_said_to_be_one(monkeypatch, tmp_path):
    relax_here(monkeypatch, tmp_path, "0.29.0")
    monkeypatch.setattr(doctor, "installed_ffi", lambda: "0.2.0")
    check = by_name(examine())["apache-tvm-ffi"]
    assert check.found and "0.29.0 was not tried" in check.detail


def test_what_tuning_needs_beside_tvm(monkeypatch, tmp_path):
    relax_here(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor, "_distribution", lambda name: None)
    checks = by_name(examine())
    assert [checks[n].needed for n in ("cloudpickle", "psutil", "tornado")] == [True, True, False]
    assert checks["psutil"].remedy.endswith("pip install psutil")
    assert checks["onnx"].remedy.endswith("pip install onnx") and "onnxslim" in checks


def test_the_line_that_is_not_here(monkeypatch, tmp_path, capsys):
    relax_here(monkeypatch, tmp_path)
    assert main(["doctor", "--line", "relay"]) == 1
    out = capsys.readouterr().out
    assert "not the relay line that is asked for" in out and "in a new environment: roller-tvm install-tvm" in out


def test_a_pool_of_half_the_cpus_is_told(monkeypatch):
    from roller_tvm import device

    monkeypatch.setattr(device, "cpu_device", lambda profile: SimpleNamespace(units=4))
    monkeypatch.delenv(doctor.ENVIRONMENT, raising=False)
    check = doctor._threads({"pool": 2})
    assert not check.found and not check.needed and check.remedy == "export TVM_NUM_THREADS=4"
    assert "scale to 4; TVM's pool takes 2" in check.detail
    assert doctor._threads({"pool": 4}).found and doctor._threads({}).found
    monkeypatch.setenv(doctor.ENVIRONMENT, "4")
    assert doctor._threads({"pool": 2}).found


def test_an_unmeasured_cpu_is_told_with_the_command_and_no_failure(monkeypatch, tmp_path):
    from roller_tvm.device import cpu_profile

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_profile, "_remembered", {})
    monkeypatch.setattr(cpu_profile, "_stored", lambda path, facts: None)
    check = doctor._profile()
    assert not check.found and not check.needed and check.remedy == "roller-tvm profile"
    assert "GFLOP/s" in check.detail and not list(tmp_path.rglob("*.json")), "looking measures nothing"
