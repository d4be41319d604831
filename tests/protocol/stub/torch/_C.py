def _current_graph_task_id():
    return -1
