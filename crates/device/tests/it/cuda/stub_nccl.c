/* A libnccl.so.2 for tests, which reports its version alone. */
int ncclGetVersion(int *version) { return *version = 22705, 0; }
