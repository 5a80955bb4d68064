"""What goes over the wire, named once: methods, headers, and the types of what is sent. Server and client read it."""
