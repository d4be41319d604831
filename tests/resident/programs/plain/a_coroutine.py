import asyncio

print(asyncio.run(asyncio.sleep(0.01, 5)))
