"""One module per feature of the protocol: from what is known of a document to what is shown."""
