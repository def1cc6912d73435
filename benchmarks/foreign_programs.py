"""Programs that are not ours, as their libraries' users write them; random weights, made data.

Each name gives `step()`, of `times` the batch written here (nodes and edges of a graph). `SEEN` were looked at while
the correction was made; `HELD_OUT` were written after it, and recorded once; `LATER` were written when dry runs stood,
and tried once; `LATEST` after these, for all of it, and `LAST` once what these had shown was mended. No constant was
fitted to the steps of any. Those of the folder `programs` are scripts; `operator_programs.py` has more, which call
operators one by one and are no models.
"""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operator_programs import OPERATORS

Step = Callable[[], Any]


def _training(model: Any, given: Callable[[], dict[str, Any]], *, compiled: bool = False, lr: float = 1e-4) -> Step:
    import torch

    model = model.cuda().train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(**given()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _stepping(optimizer: Any, loss: Callable[[], Any]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _generating(model: Any, ids: Any, tokens: int) -> Step:
    import torch

    def step() -> None:
        with torch.no_grad():
            model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)

    return step


def _tokens(words: int, *shape: int) -> Any:
    import torch

    return torch.randint(0, words, shape, device="cuda")


def _causal(kind: str, *shape: int, compiled: bool = False, **config: Any) -> Step:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**config))
    ids = _tokens(model.config.vocab_size, *shape)
    return _training(model, lambda: {"input_ids": ids, "labels": ids}, compiled=compiled)


def llama(times: int = 1) -> Step:
    return _causal("Llama", times, 512, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16,
                   num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)  # fmt: skip


def gpt2(times: int = 1) -> Step:
    return _causal("GPT2", 8 * times, 512)


def bert_compiled(times: int = 1) -> Step:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig())
    ids = _tokens(30000, 32 * times, 128)
    return _training(model, lambda: {"input_ids": ids, "labels": ids}, compiled=True)


def resnet(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.resnet50().cuda().train()
    images, target = torch.randn(32 * times, 3, 224, 224, device="cuda"), _tokens(1000, 32 * times)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(images), target))


def gpt2_generate(times: int = 1) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().eval()
    ids = _tokens(50000, 4 * times, 64)
    return _generating(model, ids, 16)


def graph_network(times: int = 1) -> Step:
    import torch
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(128, 256, 3, 40).cuda().train()
    nodes = 20_000 * times
    edges = torch.randint(0, nodes, (2, 200_000 * times), device="cuda")
    x, target = torch.randn(nodes, 128, device="cuda"), _tokens(40, nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(x, edges), target))


def t5(times: int = 1) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(d_model=512, num_layers=6, decoder_start_token_id=0))
    ids = _tokens(32000, 8 * times, 256)
    return _training(model, lambda: {"input_ids": ids, "labels": ids[:, :64].contiguous()})


def mixtral(times: int = 1) -> Step:
    return _causal("Mixtral", 2 * times, 256, hidden_size=512, intermediate_size=1024, num_hidden_layers=6,
                   num_attention_heads=8, num_key_value_heads=4, num_local_experts=8, vocab_size=32000)  # fmt: skip


def vit(times: int = 1) -> Step:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000))
    images, labels = torch.randn(64 * times, 3, 224, 224, device="cuda"), _tokens(1000, 64 * times)
    return _training(model, lambda: {"pixel_values": images, "labels": labels})


def llama_compiled(times: int = 1) -> Step:
    return _causal("Llama", 2 * times, 512, compiled=True, hidden_size=768, intermediate_size=3072, num_hidden_layers=8,
                   num_attention_heads=12, num_key_value_heads=4, vocab_size=32000)  # fmt: skip


def wav2vec2(times: int = 1) -> Step:
    import torch
    import torchaudio

    model = torchaudio.models.wav2vec2_base(aux_num_out=32).cuda().train()
    waves = torch.randn(4 * times, 32_000, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return _stepping(optimizer, lambda: model(waves)[0].square().mean())


def llama_generate(times: int = 1) -> Step:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16)
    model = LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()
    ids = _tokens(32000, 8 * times, 128)
    return _generating(model, ids, 12)


def segmentation(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone=None, num_classes=21).cuda().train()
    images, target = torch.randn(4 * times, 3, 256, 256, device="cuda"), _tokens(21, 4 * times, 256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(images)["out"], target))


def gat(times: int = 1) -> Step:
    import torch
    from torch_geometric.nn import GAT

    model = GAT(64, 64, 3, 10, heads=4).cuda().train()
    nodes = 5_000 * times
    edges = torch.randint(0, nodes, (2, 50_000 * times), device="cuda")
    x, target = torch.randn(nodes, 64, device="cuda"), _tokens(10, nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(x, edges), target))


def qwen3(times: int = 1) -> Step:
    return _causal("Qwen3", 2 * times, 384, hidden_size=896, intermediate_size=2560, num_hidden_layers=14, head_dim=64,
                   num_attention_heads=14, num_key_value_heads=2, vocab_size=24000)  # fmt: skip


def distilbert_compiled(times: int = 1) -> Step:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    ids = _tokens(30000, 24 * times, 192)
    model = DistilBertForMaskedLM(DistilBertConfig())
    return _training(model, lambda: {"input_ids": ids, "labels": ids}, compiled=True)


def convnext(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.convnext_tiny().cuda().train()
    images, target = torch.randn(16 * times, 3, 224, 224, device="cuda"), _tokens(1000, 16 * times)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(images), target))


def efficientnet_inference(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.efficientnet_b0().cuda().eval()
    images = torch.randn(32 * times, 3, 224, 224, device="cuda")

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def opt_generate(times: int = 1) -> Step:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=10, word_embed_proj_dim=768)
    return _generating(OPTForCausalLM(config).cuda().eval(), _tokens(50000, 2 * times, 96), 10)


def whisper(times: int = 1) -> Step:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
                           decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)  # fmt: skip
    sound, labels = torch.randn(8 * times, 80, 3000, device="cuda"), _tokens(50000, 8 * times, 64)
    return _training(WhisperForConditionalGeneration(config), lambda: {"input_features": sound, "labels": labels})


def swin(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.swin_t().cuda().train()
    images, target = torch.randn(16 * times, 3, 224, 224, device="cuda"), _tokens(1000, 16 * times)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(images), target))


def conformer(times: int = 1) -> Step:
    import torch
    import torchaudio

    model = torchaudio.models.Conformer(80, 4, 256, 8, 31).cuda().train()
    sound, lengths = torch.randn(8 * times, 400, 80, device="cuda"), torch.full((8 * times,), 400, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return _stepping(optimizer, lambda: model(sound, lengths)[0].square().mean())


def gin(times: int = 1) -> Step:
    import torch
    from torch_geometric.nn import GIN

    model = GIN(96, 192, 4, 16).cuda().train()
    nodes = 30_000 * times
    edges = torch.randint(0, nodes, (2, 400_000 * times), device="cuda")
    x, target = torch.randn(nodes, 96, device="cuda"), _tokens(16, nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(x, edges), target))


def gemma_compiled(times: int = 1) -> Step:
    return _causal("Gemma", 2 * times, 256, compiled=True, hidden_size=640, intermediate_size=2560, num_hidden_layers=6,
                   num_attention_heads=8, num_key_value_heads=1, head_dim=80, vocab_size=16000)  # fmt: skip


def _images(model: Any, images: int, size: int = 224) -> Step:
    import torch

    model = model.cuda().train()
    given, target = torch.randn(images, 3, size, size, device="cuda"), _tokens(1000, images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(given), target))


def densenet(times: int = 1) -> Step:
    import torchvision

    return _images(torchvision.models.densenet121(), 16 * times)


def mobilenet(times: int = 1) -> Step:
    import torchvision

    return _images(torchvision.models.mobilenet_v3_large(), 32 * times)


def regnet(times: int = 1) -> Step:
    import torchvision

    return _images(torchvision.models.regnet_y_3_2gf(), 24 * times)


def video(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.video.r3d_18(num_classes=400).cuda().train()
    given, target = torch.randn(4 * times, 3, 8, 112, 112, device="cuda"), _tokens(400, 4 * times)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(given), target))


def _masked(kind: str, batch: int, length: int, **config: Any) -> Step:
    import transformers

    made = getattr(transformers, f"{kind}Config")(**config)
    model = getattr(transformers, f"{kind}ForMaskedLM")(made)
    ids = _tokens(made.vocab_size, batch, length)
    return _training(model, lambda: {"input_ids": ids, "labels": ids})


def bert(times: int = 1) -> Step:
    return _masked("Bert", 16 * times, 256)


def electra(times: int = 1) -> Step:
    return _masked("Electra", 32 * times, 128)


def deberta(times: int = 1) -> Step:
    sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return _masked("DebertaV2", 4 * times, 256, vocab_size=32000, **sizes, **relative)


def gpt_neox(times: int = 1) -> Step:
    return _causal("GPTNeoX", 2 * times, 512, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                   num_attention_heads=12, vocab_size=50304)  # fmt: skip


def phi3(times: int = 1) -> Step:
    return _causal("Phi3", 2 * times, 384, hidden_size=1024, intermediate_size=2816, num_hidden_layers=10,
                   num_attention_heads=16, num_key_value_heads=8, vocab_size=32064, pad_token_id=0)  # fmt: skip


def bart(times: int = 1) -> Step:
    from transformers import BartConfig, BartForConditionalGeneration

    model = BartForConditionalGeneration(BartConfig(encoder_layers=6, decoder_layers=6, d_model=768))
    ids = _tokens(50000, 4 * times, 256)
    return _training(model, lambda: {"input_ids": ids, "labels": ids[:, :64].contiguous()})


def albert(times: int = 1) -> Step:
    return _masked("Albert", 8 * times, 256, hidden_size=768, num_attention_heads=12, intermediate_size=3072)


def clip(times: int = 1) -> Step:
    import torch
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig())
    images, ids = torch.randn(16 * times, 3, 224, 224, device="cuda"), _tokens(49000, 16 * times, 64)
    return _training(model, lambda: {"pixel_values": images, "input_ids": ids, "return_loss": True})


def mistral(times: int = 1) -> Step:
    return _causal("Mistral", times, 1024, hidden_size=1024, intermediate_size=3584, num_hidden_layers=8,
                   num_attention_heads=16, num_key_value_heads=4, vocab_size=32000, sliding_window=512)  # fmt: skip


def gpt_j(times: int = 1) -> Step:
    return _causal("GPTJ", 2 * times, 256, n_embd=768, n_layer=8, n_head=12, rotary_dim=32, vocab_size=50400)


def vgg(times: int = 1) -> Step:
    import torchvision

    return _images(torchvision.models.vgg16_bn(), 16 * times)


def maxvit(times: int = 1) -> Step:
    import torchvision

    return _images(torchvision.models.maxvit_t(), 8 * times)


def deep_speech(times: int = 1) -> Step:
    import torch
    import torchaudio

    model = torchaudio.models.DeepSpeech(64, n_hidden=1024, n_class=32).cuda().train()
    sound = torch.randn(8 * times, 1, 300, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return _stepping(optimizer, lambda: model(sound).square().mean())


def graph_convolution(times: int = 1) -> Step:
    import torch
    from torch_geometric.nn import GCN

    model = GCN(100, 256, 3, 47, dropout=0.5).cuda().train()
    nodes = 40_000 * times
    edges = torch.randint(0, nodes, (2, 300_000 * times), device="cuda")
    x, target = torch.randn(nodes, 100, device="cuda"), _tokens(47, nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(x, edges), target))


def words_lstm(times: int = 1) -> Step:
    import torch

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(20_000, 512)
            self.lstm = torch.nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.2)
            self.head = torch.nn.Linear(1024, 20_000)

        def forward(self, ids: Any) -> Any:
            return self.head(self.lstm(self.embed(ids))[0])

    model, ids = Words().cuda().train(), _tokens(20_000, 32 * times, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return _stepping(optimizer, lambda: torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


def translator(times: int = 1) -> Step:
    import torch

    model = torch.nn.Transformer(512, 8, 4, 4, 2048, batch_first=True).cuda().train()
    embed, head = torch.nn.Embedding(16_000, 512).cuda(), torch.nn.Linear(512, 16_000).cuda()
    source, target = _tokens(16_000, 16 * times, 128), _tokens(16_000, 16 * times, 96)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(96, device="cuda")
    optimizer = torch.optim.AdamW([*model.parameters(), *embed.parameters(), *head.parameters()], lr=1e-4)

    def loss() -> Any:
        found = head(model(embed(source), embed(target), tgt_mask=mask))
        return torch.nn.functional.cross_entropy(found.flatten(0, 1), target.flatten())

    return _stepping(optimizer, loss)


def adversaries(times: int = 1) -> Step:
    import torch
    from torch import nn

    def up(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def down(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True))

    maker = nn.Sequential(nn.ConvTranspose2d(100, 512, 4), up(512, 256), up(256, 128), up(128, 64),
                          nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).cuda()  # fmt: skip
    judge = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Conv2d(512, 1, 4)).cuda()
    makes = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real, told = torch.randn(64 * times, 3, 64, 64, device="cuda"), nn.BCEWithLogitsLoss()

    def step() -> None:
        made = maker(torch.randn(64 * times, 100, 1, 1, device="cuda"))
        judges.zero_grad()
        true, false = judge(real), judge(made.detach())
        (told(true, torch.ones_like(true)) + told(false, torch.zeros_like(false))).backward()
        judges.step()
        makes.zero_grad()
        again = judge(made)
        told(again, torch.ones_like(again)).backward()
        makes.step()

    return step


def clicks(times: int = 1) -> Step:
    import torch
    from torch import nn

    rows, tables, dim, batch = 100_000, 12, 64, 2048 * times
    bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables)).cuda()
    below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, dim), nn.ReLU()).cuda()
    above = nn.Sequential(nn.Linear(dim * (tables + 1), 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.SGD([*bags.parameters(), *below.parameters(), *above.parameters()], lr=0.1)
    dense, label = torch.randn(batch, 13, device="cuda"), torch.rand(batch, 1, device="cuda")
    ids = [_tokens(rows, batch, 4) for _ in range(tables)]

    def loss() -> Any:
        found = torch.cat([below(dense), *(bag(i) for bag, i in zip(bags, ids, strict=True))], dim=1)
        return nn.functional.binary_cross_entropy_with_logits(above(found), label)

    return _stepping(optimizer, loss)


def diffusion_unet(times: int = 1) -> Step:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a: int, b: int, attends: bool) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
            self.time = nn.Linear(256, b)
            self.second = nn.Sequential(nn.GroupNorm(8, b), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(b, b, 3, padding=1))
            self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
            self.attention = nn.MultiheadAttention(b, 4, batch_first=True) if attends else None

        def forward(self, x: Any, time: Any) -> Any:
            found = self.skip(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])
            if self.attention is not None:
                flat = found.flatten(2).transpose(1, 2)
                flat = flat + self.attention(flat, flat, flat, need_weights=False)[0]
                found = flat.transpose(1, 2).reshape(found.shape)
            return found

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
            self.into, self.out = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
            self.down = nn.ModuleList([Block(64, 64, False), Block(64, 128, False), Block(128, 256, True)])
            self.up = nn.ModuleList([Block(512, 128, True), Block(256, 64, False), Block(128, 64, False)])

        def forward(self, x: Any, time: Any) -> Any:
            time, found, kept = self.time(time), self.into(x), []
            for block in self.down:
                found = block(found, time)
                kept.append(found)
                found = nn.functional.avg_pool2d(found, 2)
            for block in self.up:
                found = nn.functional.interpolate(found, scale_factor=2, mode="nearest")
                found = block(torch.cat([found, kept.pop()], 1), time)
            return self.out(found)

    model, images = Denoiser().cuda().train(), torch.randn(16 * times, 3, 64, 64, device="cuda")
    noise, at = torch.randn_like(images), torch.randn(16 * times, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return _stepping(optimizer, lambda: nn.functional.mse_loss(model(images + noise, at), noise))


def tagger(times: int = 1) -> Step:
    import torch

    words = torch.nn.Embedding(30_000, 300).cuda()
    reader = torch.nn.GRU(300, 512, 3, batch_first=True, bidirectional=True, dropout=0.3).cuda().train()
    head = torch.nn.Linear(1024, 50).cuda()
    ids, tags = _tokens(30_000, 64 * times, 100), _tokens(50, 64 * times, 100)
    optimizer = torch.optim.Adam([*words.parameters(), *reader.parameters(), *head.parameters()], lr=1e-3)
    loss = torch.nn.functional.cross_entropy
    return _stepping(optimizer, lambda: loss(head(reader(words(ids))[0]).flatten(0, 1), tags.flatten()))


def llama_recomputed(times: int = 1) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                                         num_attention_heads=12, vocab_size=32000))  # fmt: skip
    model.gradient_checkpointing_enable()
    ids = _tokens(32000, 4 * times, 512)
    return _training(model, lambda: {"input_ids": ids, "labels": ids})


def gpt_bigcode(times: int = 1) -> Step:
    return _causal("GPTBigCode", 2 * times, 512, n_embd=768, n_layer=10, n_head=12, vocab_size=49152)


def clipped(times: int = 1) -> Step:
    """Four small batches, and gradients that are cut to a norm."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    model = RobertaForSequenceClassification(RobertaConfig(num_hidden_layers=6, num_labels=4)).cuda().train()
    batches = [(_tokens(50_000, 8 * times, 128), _tokens(4, 8 * times)) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    def step() -> None:
        for ids, labels in batches:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=labels).loss / len(batches)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnext(times: int = 1) -> Step:
    import torch
    import torchvision

    model = torchvision.models.resnext50_32x4d().cuda().to(memory_format=torch.channels_last).train()
    images = torch.randn(32 * times, 3, 192, 192, device="cuda").to(memory_format=torch.channels_last)
    target, optimizer = _tokens(1000, 32 * times), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images), target)

    return _stepping(optimizer, loss)


def bloom(times: int = 1) -> Step:
    return _causal("Bloom", 4 * times, 256, hidden_size=768, n_layer=10, n_head=12, vocab_size=32000)


def olmo2(times: int = 1) -> Step:
    return _causal("Olmo2", times, 384, hidden_size=768, intermediate_size=2048, num_hidden_layers=14,
                   num_attention_heads=12, vocab_size=50304, pad_token_id=1)  # fmt: skip


def falcon(times: int = 1) -> Step:
    return _causal("Falcon", 2 * times, 512, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16,
                   vocab_size=32000)  # fmt: skip


def mpnet(times: int = 1) -> Step:
    return _masked("MPNet", 8 * times, 192, num_hidden_layers=8)


def beit(times: int = 1) -> Step:
    import torch
    from transformers import BeitConfig, BeitForImageClassification

    model = BeitForImageClassification(BeitConfig(num_hidden_layers=8, num_labels=100, drop_path_rate=0.0))
    images, labels = torch.randn(16 * times, 3, 224, 224, device="cuda"), _tokens(100, 16 * times)
    return _training(model, lambda: {"pixel_values": images, "labels": labels})


def segformer(times: int = 1) -> Step:
    import torch
    from transformers import SegformerConfig, SegformerForImageClassification

    model = SegformerForImageClassification(SegformerConfig(num_labels=50, drop_path_rate=0.0))
    images, labels = torch.randn(16 * times, 3, 224, 224, device="cuda"), _tokens(50, 16 * times)
    return _training(model, lambda: {"pixel_values": images, "labels": labels})


def pegasus(times: int = 1) -> Step:
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    sizes = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_layers": 6, "decoder_layers": 6}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "vocab_size": 32000}
    model = PegasusForConditionalGeneration(PegasusConfig(**sizes, **heads))
    ids = _tokens(32000, 4 * times, 192)
    return _training(model, lambda: {"input_ids": ids, "labels": ids[:, :48].contiguous()})


def gpt2_classes(times: int = 1) -> Step:
    """Fine-tuning in 16 bits with AdamW as `transformers` has it by default, in a loop over tensors."""
    import torch
    from transformers import GPT2Config, GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification(GPT2Config(n_layer=6, num_labels=5, pad_token_id=0))
    model = model.cuda().to(torch.bfloat16).train()
    ids, labels = _tokens(50_000, 4 * times, 128), _tokens(5, 4 * times)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
    return _stepping(optimizer, lambda: model(input_ids=ids, labels=labels).loss)


SEEN = (llama, gpt2, bert_compiled, resnet, gpt2_generate, graph_network, t5, mixtral, vit, llama_compiled,
        wav2vec2, llama_generate, segmentation, gat)  # fmt: skip
HELD_OUT = (qwen3, convnext, opt_generate, whisper, distilbert_compiled, swin, gin, conformer, efficientnet_inference,
            gemma_compiled)  # fmt: skip
LATER = (densenet, mobilenet, regnet, video, bert, electra, deberta, gpt_neox, phi3, bart)
LATEST = (albert, clip, mistral, gpt_j, vgg, maxvit, deep_speech, graph_convolution, words_lstm, translator,
          adversaries, clicks)  # fmt: skip
LAST = (diffusion_unet, tagger, llama_recomputed, gpt_bigcode, clipped, resnext)
FRESH = (bloom, olmo2, falcon, mpnet, beit, segformer, pegasus, gpt2_classes)


def _script(path: Path, times: int = 1) -> Step:
    step: Step = runpy.run_path(str(path), {"TIMES": times})["step"]
    return step


SCRIPTS = {
    path.stem: functools.partial(_script, path) for path in sorted(Path(__file__).with_name("programs").glob("*.py"))
}
PROGRAMS: dict[str, Callable[..., Step]] = {
    f.__name__: f for f in (*SEEN, *HELD_OUT, *LATER, *LATEST, *LAST, *FRESH, *OPERATORS)
} | SCRIPTS
