"""The attack suite: what must hold whoever wrote the folder, the file or the request (`python -m tests.attacks`)."""
