//! What happened: everything a trace tells, in exact nanoseconds.
