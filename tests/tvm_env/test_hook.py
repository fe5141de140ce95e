"""The hook in a pretend site-packages: the TVM of the user goes first, and nothing is done unasked."""

import pytest

from roller_tvm.tvm_env import hook
from roller_tvm.tvm_env.install import HOOK, install_hook, remove_hook

# What site does with the .pth file of a site-packages folder.
SITE = "import site, sys; site.addsitedir(sys.path[1]); "


@pytest.fixture
def site(tmp_path, make_tvm):
    folder = tmp_path / "site-packages"
    # Libraries of CUDA are pretended by stubs too; the hook only loads them.
    from roller_tvm.tvm_env.stub import stub_library

    for part, library in hook.CUDA_LIBRARIES:
        at = folder / "nvidia" / part / "lib"
        at.mkdir(parents=True)
        (at / library).write_bytes(stub_library(library, ["f"], 1))
    make_tvm(folder / hook.WHEEL_TVM, "0.17.dev0")
    install_hook(folder)
    return folder


def test_the_wheel_is_found_and_its_libraries_loaded(fresh, site):
    code = (
        "import tvm, os, ctypes; print(tvm.__version__, os.environ['TOPHUB_LOCATION']);"
        "[ctypes.CDLL(n) for n in ('libcuda.so.1', 'libcudart.so.12', 'libnvrtc.so.12')]"
    )
    assert fresh(SITE + code, site) == "0.17.dev0 NONE"


def test_own_tvm_goes_first_and_nothing_is_preloaded(fresh, site, make_tvm, tmp_path):
    own = make_tvm(tmp_path / "own", "0.13.0")
    # Last on the path, after site-packages, it still goes first.
    code = (
        f"sys.path.append({str(own)!r}); import tvm, os;"
        "print(tvm.__version__, 'TOPHUB_LOCATION' in os.environ, 'ctypes' in sys.modules)"
    )
    assert fresh(SITE + code, site) == "0.13.0 False False"


def test_own_tvm_of_a_later_finder_goes_first(fresh, site):
    # Editable installs bring a finder of their own.
    code = (
        "import importlib.machinery as m\n"
        "class Late:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return m.ModuleSpec(name, None, is_package=True) if name == 'tvm' else None\n"
        "sys.meta_path.append(Late)\n"
        "import tvm; print(hasattr(tvm, '__version__'))"
    )
    assert fresh(SITE.replace("; ", "\n") + code, site) == "False"


def test_interpreters_that_import_no_tvm_pay_nothing(fresh, site):
    code = f"print({HOOK!r} in sys.modules, 'ctypes' in sys.modules, 'roller_tvm' in sys.modules)"
    assert fresh(SITE + code, site) == "True False False"


def test_a_missing_library_names_the_remedy(fresh, site, monkeypatch):
    (site / "nvidia/cuda_runtime/lib/libcudart.so.12").write_bytes(b"not a library")
    done = fresh(SITE + "import tvm", site, check=False)
    assert "ImportError" in done.stderr and "roller-tvm install-tvm" in done.stderr


def test_removed_hook_leaves_nothing(site):
    remove_hook(site)
    assert not list(site.glob(f"{HOOK}*"))


@pytest.mark.tvm
def test_workers_started_by_others_have_tvm():
    # AutoTVM's and Ansor's builders run `python -m tvm.exec.popen_worker` through this pool.
    import tvm.testing
    from tvm.contrib.popen_pool import PopenWorker

    worker = PopenWorker()
    worker.send(tvm.testing.identity_after, ["alive", 0])
    assert worker.recv() == "alive"
    worker.kill()
