import logging

logging.warning("careful")
logging.info("not shown")
