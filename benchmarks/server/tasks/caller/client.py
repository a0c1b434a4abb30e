"""A program that makes calls one after the other, over one connection, and says when."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

calls, url = int(sys.argv[1]), urlsplit(os.environ["OPENAI_BASE_URL"])
link = http.client.HTTPConnection(url.hostname or "", url.port)
head = {
    "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
    "Content-Type": "application/json",
}
began, texts = time.time(), 0
for number in range(calls):
    told = {"messages": [{"role": "user", "content": f"{number} {os.environ['ORCHESTRY_SEED']}"}]}
    link.request("POST", f"{url.path}/chat/completions", json.dumps(told), head)
    answer = link.getresponse()
    body = json.loads(answer.read())
    if answer.status != 200:
        sys.exit(f"{answer.status}: {body}")
    texts += bool(body["choices"][0]["message"]["content"])
print(json.dumps({"reward": texts / calls, "feedback": f"{began} {time.time()}"}))
