"""What each kernel computes, in NumPy: float64 inside, the kernel's own rounding where it stores."""
