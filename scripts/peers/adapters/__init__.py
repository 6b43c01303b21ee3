"""One file a library, each as somebody who uses that library well would write it."""
