"""What the operating system gives this process: memory, cores, and the user's folders."""
