"""CUDA kernels of the device path: sources (`cuda/`), what they compute (`reference/`), and how they are compiled
(`nvrtc`), run on a CPU for tests (`emulate`) and described to everything else (`spec`, `catalog`)."""
