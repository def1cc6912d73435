"""Compiling for the first use: it is told, and it can be interrupted."""

import os
import signal
import threading

import pytest

from etude.kernels import first_use
from etude.kernels.compile import code_bytes, kernel


@kernel
def _twice(x):
    return 2 * x


@kernel
def _four_times(x):
    return _twice(_twice(x))


def test_a_kernel_that_calls_others_has_their_code_to_compile_too():
    assert 0 < code_bytes(_twice) < code_bytes(_four_times)


def test_who_listens_hears_of_the_kernel_that_is_called_and_not_of_those_it_calls():
    heard = []
    with first_use.told_of_compiling(lambda name, seconds: heard.append((name, seconds > 0))):

        def work(signature):
            first_use.announce("outer", lambda: 100)
            first_use.announce("inner", lambda: 10)
            return signature

        assert first_use.interruptible(work)("signature") == "signature"
    assert heard == [("outer", True)]


def test_nobody_listens_and_nothing_is_told():
    first_use.announce("outer", lambda: pytest.fail("nobody asked"))


def test_an_error_of_the_compiler_comes_through():
    def work(signature):
        raise TypeError("no such type")

    with first_use.told_of_compiling(lambda name, seconds: None), pytest.raises(TypeError, match="no such type"):
        first_use.interruptible(work)("signature")
    assert not first_use.compiling()


def test_ctrl_c_comes_through_while_the_compiler_goes_on():
    """The compiler holds out until it is told to end, which is after the interruption was seen."""
    begun, end = threading.Event(), threading.Event()

    def work(signature):
        begun.set()
        end.wait()
        return signature

    def interrupt():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell has it ignored
    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        with first_use.told_of_compiling(lambda name, seconds: None), pytest.raises(KeyboardInterrupt):
            first_use.interruptible(work)("signature")
        assert first_use.compiling()
    finally:
        end.set()
        sender.join()
        signal.signal(signal.SIGINT, before)
    first_use._finished.wait()
    assert not first_use.compiling()
