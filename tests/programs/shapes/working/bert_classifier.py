"""A head on an encoder of transformers, made from a configuration."""

import torch
from torch import nn
from transformers import BertConfig, BertModel


class BertClassifier(nn.Module):
    def __init__(self, config, num_labels=3):
        super().__init__()
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(config.hidden_size, num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        outputs = self.bert(input_ids, attention_mask=attention_mask)
        pooled = outputs.pooler_output
        hidden = outputs.last_hidden_state
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return loss, logits, hidden


config = BertConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
)
model = BertClassifier(config)
ids = torch.randint(0, 1000, (8, 32))
loss, logits, hidden = model(ids, attention_mask=torch.ones_like(ids))
