"""The layer between sockets and routes: connections, guards, errors in the client's form."""
