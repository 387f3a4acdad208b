"""The life of a request, told as dialogues between a host and the dispatcher."""
