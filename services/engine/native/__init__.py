"""The native CPU step: C++ sources, their build, and the library as Python sees it."""
