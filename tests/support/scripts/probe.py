"""Prints what a program sees of its own start."""

import atexit
import gc
import json
import multiprocessing
import os
import pickle
import signal
import sys

import sibling


class Sample:
    """An object that other processes unpickle."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sample)


def module_name(sample: Sample) -> str:
    return type(sample).__module__


def main() -> None:
    own = sys.modules["__main__"]
    spec = own.__spec__
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        in_child = pool.apply(module_name, (Sample(),))
    print(
        json.dumps(
            {
                "argv": sys.argv,
                "path": sys.path,
                "file": own.__file__,
                "name": own.__name__,
                "package": own.__package__,
                "spec": spec and spec.name,
                "loader": type(own.__loader__).__name__,
                "globals": sorted(vars(own)),
                "sibling": sibling.__file__,
                "pickled": pickle.loads(pickle.dumps(Sample())) == Sample(),
                "in_child": in_child,
                "folder": os.getcwd(),
                "torch": "torch" in sys.modules,
                "garbage": gc.get_threshold(),
                "handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
                "stdin": sys.stdin.read(),
            }
        ),
        flush=True,
    )
    atexit.register(lambda: print("at exit", getattr(own, "__file__", None), sys.modules["__main__"] is own))
    if "exit-text" in sys.argv:
        sys.exit("a text")
    if "exit-3" in sys.argv:
        sys.exit(3)
    if "raise" in sys.argv:
        raise ValueError("raised")
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
    if "syntax" in sys.argv:
        compile("1 +", "text", "exec")


if __name__ == "__main__":
    main()
