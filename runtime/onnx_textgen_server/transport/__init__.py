"""What stands between a socket and the routes: connections, guards, errors in the client's form."""
