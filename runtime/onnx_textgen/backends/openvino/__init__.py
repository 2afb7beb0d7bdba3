"""The second engine, OpenVINO: its session, its operators, and the graphs that it is known to read."""
