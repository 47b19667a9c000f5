"""One thin file a command: parse, call one function, print."""
