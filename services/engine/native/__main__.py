"""`python -m services.engine.native` builds the library where it can be used; elsewhere it says why not."""

from services.engine.native.build import NativeUnavailableError, find_library


def main() -> None:
    """Never fails: an engine without the library computes in torch."""
    try:
        print(f"native step: {find_library()}")
    except NativeUnavailableError as error:
        print(f"native step: {error}; the engine will compute in torch")


if __name__ == "__main__":
    main()
