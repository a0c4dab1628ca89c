"""Lists the architectures that `tiny:ARCH` builds, and what their configs call each size."""

from __future__ import annotations

import difflib
from typing import Any


def _names(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


# Printed by bench/scan_tiny.py, which builds and trains each of them for a step.
FAMILIES: dict[str, tuple[str, ...]] = {
    "causal-lm": _names(
        """afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid bart beam bert bert-generation
        big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom camembert
        codegen cohere cohere2 cohere2_moe ctrl cwm data2vec-text deepseek_v2 deepseek_v3
        deepseek_v32 deepseek_v4 diffllama doge dots1 electra emu3 ernie ernie4_5 ernie4_5_moe
        exaone4 exaone_moe falcon falcon_h1 falcon_mamba flex_olmo flint fuyu gemma gemma2
        gemma3 gemma3_text gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text
        glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox
        gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
        granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax
        inkling_text jais2 jamba jetmoe kimi_linear kolibri1 laguna lfm2 llama llama4
        llama4_text longcat_flash mamba mamba2 marian mbart megatron-bert mellum mimo_v2_flash
        minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
        mllama modernbert-decoder moshi moss_transcribe_diarize mpt mvp nanochat nemotron
        nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt pegasus persimmon phi phi3
        phi4_multimodal phimoe plbart qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text
        qwen3_5_text qwen3_moe qwen3_next recurrent_gemma reformer rembert roberta
        roberta-prelayernorm roc_bert roformer rwkv seed_oss smollm3 solar_open stablelm
        starcoder2 trocr vaultgemma whisper xglm xlm xlm-roberta xlm-roberta-xl xlstm xmod youtu
        zaya"""
    ),
    "masked-lm": _names(
        """albert bart bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert
        electra ernie esm esmc eurobert flaubert fnet funnel gte ibert jina_embeddings_v3
        layoutlm longformer luke mbart megatron-bert mobilebert modernbert modernvbert mpnet mra
        mvp neomme nomic_bert nystromformer reformer rembert roberta roberta-prelayernorm
        roc_bert roformer squeezebert tapas ultrabert ultravbert xlm xlm-roberta xlm-roberta-xl
        xmod yoso"""
    ),
    "seq2seq": _names(
        """bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder led longt5 m2m_100
        marian mbart mt5 mvp nllb-moe pegasus pegasus_x plbart prophetnet seamless_m4t
        seamless_m4t_v2 switch_transformers t5 t5gemma t5gemma2 umt5"""
    ),
    "image-classification": _names(
        """beit bit clip convnext convnextv2 data2vec-vision deit dinov2 dinov2_with_registers
        focalnet hiera ijepa metaclip_2 mobilenet_v2 mobilevit poolformer pvt pvt_v2 regnet
        resnet segformer siglip swin swinv2 vit vit_msn"""
    ),
    "image-segmentation": _names("""segformer"""),
    "audio-classification": _names(
        """ast data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert
        wav2vec2-conformer wavlm whisper"""
    ),
    "text-classification": _names(
        """albert arcee axk1 axk2 bert big_bird biogpt bloom camembert canine convbert ctrl
        data2vec-text deberta deberta-v2 deepseek_v2 deepseek_v3 diffllama distilbert doge
        electra ernie esm esmc eurobert exaone4 falcon flaubert fnet funnel gemma gemma2 gemma3
        gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_oss gptj gte helium
        hunyuan_v1_dense hunyuan_v1_moe ibert jamba jetmoe jina_embeddings_v3 layoutlm llama
        longformer luke markuplm megatron-bert minicpm3 minimax ministral ministral3 mistral
        mistral4 mixtral mobilebert modernbert modernbert-decoder modernvbert mpnet mpt mra
        nemotron nomic_bert nystromformer olmo olmo2 olmo3 openai-gpt opt perceiver persimmon
        phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_text qwen3_moe qwen3_next reformer
        rembert roberta roberta-prelayernorm roc_bert roformer seed_oss smollm3 squeezebert
        stablelm starcoder2 t5gemma t5gemma2 tapas ultrabert ultravbert xlm xlm-roberta
        xlm-roberta-xl xlnet xmod yoso"""
    ),
    "token-classification": _names(
        """albert apertus arcee axk1 axk2 bert big_bird biogpt bloom camembert canine convbert
        data2vec-text deberta deberta-v2 deepseek_v3 diffllama distilbert electra ernie esm
        esmc eurobert exaone4 falcon flaubert fnet funnel gemma gemma2 glm glm4 gpt-sw3 gpt2
        gpt_bigcode gpt_neox gpt_oss gte helium ibert jina_embeddings_v3 layoutlm llama
        longformer luke markuplm megatron-bert minimax ministral ministral3 mistral mistral4
        mixtral mobilebert modernbert modernvbert mpnet mpt mra mt5 nemotron nomic_bert
        nystromformer openai_privacy_filter persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_5
        qwen3_moe qwen3_next rembert roberta roberta-prelayernorm roc_bert roformer seed_oss
        smollm3 squeezebert stablelm starcoder2 t5 t5gemma t5gemma2 ultrabert ultravbert
        umt5 xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso"""
    ),
}


# The names that configs give to each size of a model.
ALIASES: dict[str, str] = {
    "hidden": """hidden_size n_embd d_model dim emb_dim embedding_size word_embed_proj_dim d_latents
        true_hidden_size lru_width attention_hidden_size pooler_hidden_size prediction_head_size
        input_embedding_size output_embedding_size out_hidden_size pooler_output_size
        backbone_hidden_size projection_dim embedding_dim embedding_rank entity_emb_size
        pronunciation_embed_dim shape_embed_dim decoder_hidden_size dim_model_base ple_embed_dim
        intra_bottleneck_size output_hidden_size output_dim audio_hidden_size""",
    "stem": "embed_dim",
    "inner": """intermediate_size n_inner d_ff d_inner dff dim_ff ffn_dim encoder_ffn_dim
        decoder_ffn_dim ffn_hidden_size hidden_dim feed_forward_size intermediate_size_mlp
        dense_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size""",
    "expert_inner": """moe_intermediate_size shared_expert_intermediate_size
        expert_ffn_hidden_size""",
    "layers": """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers
        num_encoder_layers num_decoder_layers num_layers_per_stack num_blocks""",
    "heads": """num_attention_heads n_head n_heads attention_heads encoder_attention_heads
        decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads
        num_self_attention_heads num_cross_attention_heads num_heads swa_num_attention_heads
        linear_num_heads linear_num_key_heads linear_num_value_heads index_n_heads""",
    "kv_heads": "num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads",
    "head_dim": """head_dim d_kv d_head kv_channels dim_head attention_head_size swa_head_dim
        v_head_dim qk_head_dim global_head_dim linear_head_dim linear_key_head_dim
        linear_value_head_dim index_head_dim rotary_dim mamba_d_head mamba_head_dim""",
    "half_head": "qk_nope_head_dim qk_rope_head_dim",
    "mamba_heads": "mamba_n_heads mamba_num_heads",
    "mamba_inner": "mamba_d_ssm",
    "rank": """q_lora_rank kv_lora_rank o_lora_rank gated_norm_rank laurel_rank adapter_rank
        hc_lowrank hidden_size_per_layer_input state_size mamba_d_state ssm_state_size
        router_hidden_size time_step_rank mamba_dt_rank""",
    "experts": "num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num",
    "few": "num_experts_per_tok moe_topk moe_k num_experts_per_token",
    "one": """n_group topk_group num_expert_group n_shared_experts num_shared_experts
        moe_num_shared_experts first_k_dense_replace num_dense_layers moe_layer_start_index
        mamba_n_groups n_groups mamba_ngroups o_groups num_self_attends_per_block
        interleave_moe_layer_step num_nextn_predict_layers""",
    "none": "num_kv_shared_layers",
    "positions": """max_position_embeddings n_positions n_ctx max_seq_len model_max_length
        max_encoder_position_embeddings max_decoder_position_embeddings max_source_positions
        max_target_positions context_length""",
    "vocab": """vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size entity_vocab_size
        vocab_size_per_layer_input""",
    "image": "image_size input_size",
    "patch": "patch_size",
}


# None by default in some configs, whose models cannot be built without a value.
REQUIRED = _names(
    """head_dim num_key_value_heads vocab_size n_routed_experts n_shared_experts
    num_experts_per_tok"""
)


MODEL_TYPES = {"ast": "audio-spectrogram-transformer"}
"""What transformers calls architectures that are known by a shorter name."""

_WAVEFORMS = {
    "conv_dim": [32] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": "hidden",
    "feat_extract_norm": "layer",
}
"""A small encoder of waveforms, which keeps padding out by the attention mask."""


# Settings of architectures whose sizes depend on each other; a key of ALIASES stands for that size.
OVERRIDES: dict[str, dict[str, Any]] = {
    "ast": {"patch_size": 16, "frequency_stride": 16, "time_stride": 16},
    "axk1": {"head_dim": "half_head"},
    "bit": {"num_groups": 4, "embedding_size": 16},
    "cvt": {"depth": [1, 2, 3]},
    "data2vec-audio": {**_WAVEFORMS, "conv_pos_kernel_size": 3},
    "deepseek_v3": {"head_dim": "half_head"},
    "deit": {"architectures": ["DeiTForImageClassification"]},
    "hubert": _WAVEFORMS,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "longcat_flash": {"head_dim": "half_head"},
    "mamba2": {"num_heads": "mamba_heads"},
    "mobilenet_v2": {"output_stride": 8, "depth_multiplier": 0.35},
    "mobilevit": {"output_stride": 16},
    "reformer": {"axial_pos_embds": False},
    "regnet": {"hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "groups_width": 16},
    "resnet": {"hidden_sizes": [32, 64, 128], "depths": [1, 1, 1], "embedding_size": 32},
    "swin": {"depths": [1, 1, 1], "num_heads": [1, 2, 4], "window_size": 2},
    "unispeech": _WAVEFORMS,
    "unispeech-sat": _WAVEFORMS,
    "wav2vec2": _WAVEFORMS,
    "wav2vec2-bert": {"classifier_proj_size": "hidden"},
    "wav2vec2-conformer": {**_WAVEFORMS, "conv_depthwise_kernel_size": 7},
    "wavlm": _WAVEFORMS,
    "xmod": {"default_language": "en_XX"},
    "youtu": {"head_dim": "half_head"},
    "zaya": {"num_experts_per_tok": 1},
}


def check_architecture(arch: str, family: str | None = None) -> None:
    """Raise ValueError, with the nearest names, unless `tiny:` can build `arch`."""
    known = FAMILIES[family] if family else sorted(set().union(*FAMILIES.values()))
    if arch in known:
        return
    near = difflib.get_close_matches(arch, known, n=3, cutoff=0.5)
    hint = (
        f"close matches: {', '.join(near)}" if near else f"there are {len(known)}, e.g. {known[0]}"
    )
    kind = f"an architecture for {family}" if family else "an architecture"
    raise ValueError(f"tiny:{arch}: {arch!r} is not {kind} that can be built small; {hint}")
