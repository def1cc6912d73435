"""Tiny files of every kind that `etude score` knows, made by hand."""

import json
from pathlib import Path

TRAINING = (
    "model,gpu_type,gpus,tp,pp,global_batch,seq,micro_batch,measured_metric,value,unit,precision,stack,year\n"
    "Llama-2-7B,H100-80GB,8,1,1,128,4096,1,step time,9,s,bf16,nemo,2025\n"
    "Llama-2-7B,Cray-1,8,1,1,128,4096,1,step time,9,s,bf16,nemo,2025\n"
    "Llama-2-7B,H100-80GB,8,1,1,128,4096,1,all-reduce bandwidth,9,GB/s,bf16,nemo,2025\n"
)
EAGER = (
    "kind,layers,hidden,heads,ffn,vocab,norm,act,batch,seq,params,train_step_ms_median,peak_bytes\n"
    "train,2,512,8,2048,32000,ln,gelu,1,256,1,5,1000000000\n"
)
SERVING = (
    "model,task,total_params_b,active_params_b,weight_precision,gpu,num_gpus,tp,dp,ep,avg_power_watts,avg_batch_size,"
    "avg_output_len,energy_per_token_joules,max_num_seqs,median_itl_ms,output_throughput_tokens_per_sec\n"
    "meta-llama/Llama-3.1-8B-Instruct,lm-arena-chat,8,8,bfloat16,H100,1,1,1,1,600,16,400,0.5,16,8,1900\n"
    "meta-llama/Llama-3.1-8B-Instruct,chess,8,8,bfloat16,H100,1,1,1,1,600,16,400,0.5,16,8,1900\n"
)
PUBLISHED = (
    "model,gpu_type,gpus,tp,weight_precision,engine,input_tokens,output_tokens,lengths,load,concurrency,max_batch,"
    "num_requests,output_tokens_per_s,ttft_s,tpot_s,batch_latency_s\n"
    "meta-llama/Meta-Llama-3-8B,H100,1,1,bf16,vLLM,128,16,fixed,static batch,4,4,,,0.02,0.008,0.2\n"
    "meta-llama/Meta-Llama-3-8B,H100,1,1,bf16,vLLM,128,16,fixed,closed loop,2,,6,,0.02,0.008,\n"
    "meta-llama/Meta-Llama-3-8B,H100,1,1,int4,vLLM,128,16,fixed,closed loop,2,,6,,0.02,0.008,\n"
    "meta-llama/Meta-Llama-3-8B,Abacus,1,1,bf16,vLLM,128,16,fixed,closed loop,2,,6,,0.02,0.008,\n"
)
DIFFUSION = (
    "model,gpu,num_gpus,batch_size,inference_steps,batch_latency_s,image_height,image_width,num_frames\n"
    "black-forest-labs/FLUX.1-dev,H100,1,1,2,1.5,256,256,\n"
)
OPERATORS = (
    "op,shape,flops,bytes,microseconds\n"
    "linear_bf16,1024x1024x1024,2147483648,6291456,9\n"
    "copy_bf16,1000000,0,4000000,2.5\n"
)
VIDUR = (
    "device,model,op,tokens,tp,heads,kv_heads,hidden,ffn,vocab,gated,median_us\n"
    "a100,one,attn_pre_proj,512,4,64,8,8192,28672,32768,True,110\n"
    "a100,one,sing,512,4,64,8,8192,28672,32768,True,110\n"
    "tpu,one,add,512,4,64,8,8192,28672,32768,True,110\n"
)
NCCL = (
    "source,gpu,gpus,gpus_per_node,collective,size_bytes,time_us\n"
    "here,H100-80GB,8,8,all_reduce,1048576,40\n"
    "here,Z80,8,8,all_reduce,1048576,40\n"
)
VIDUR_CALLS = "system,collective,workers,devices_per_node,bytes,median_us\nh100_dgx,send_recv,2,2,2048,9\n"
NCCL_TESTS = """# nThread 1 nGpus 4 minBytes 8 maxBytes 1048576 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid   1 on   one device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1 on   one device  1 [0x2a] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1 on   one device  2 [0x3a] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1 on   one device  3 [0x4a] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    13.67    0.00    0.00      0    13.50    0.00    0.00      0
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    39.00   26.89   40.33      0
# Out of bounds values : 0 OK
"""
ENERGY = (
    "name,kind,detail,call_ns,mean_w,energy_j_per_call\n"
    "idle_start,idle,no work,0,130,0\n"
    "gemm_bf16_4096,gemm_bf16,,200000,600,0.12\n"
    "gemm_zeros_4096,gemm_bf16,zeros,200000,600,0.12\n"
)
CONTENTION = (
    "op,background,op_alone_ns,background_alone_ns,op_with_background_ns,covered\n"
    "gemm_1024,gemm_1024,5463,5463,10150,1\n"
    "gemm_1024,gemm_1024,5463,5463,10150,0\n"
)
OFFLOAD = "direction,memory,bytes,ns_median\nh2d,pinned,1048576,30000\nhost_copy,pinned,1048576,30000\n"
BENCH = Path(__file__).parent / "golden/requests/vllm-bench-0.32.0.json"

TABLES = {
    "training": (TRAINING, EAGER),
    "serving": (SERVING, PUBLISHED),
    "diffusion": (DIFFUSION,),
    "operators": (OPERATORS, VIDUR),
    "collectives": (NCCL, VIDUR_CALLS, NCCL_TESTS),
    "energy": (ENERGY,),
    "contention": (CONTENTION,),
    "offload": (OFFLOAD,),
}


def vllm_folder(place: Path) -> Path:
    """A run of vLLM of two requests."""
    place.mkdir(parents=True)
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "engine_kwargs": {"max_num_seqs": 8},
        "kv_cache": {"num_gpu_blocks": 500},
    }
    (place / "meta.json").write_text(json.dumps(meta | {"hardware": {"device_name": "NVIDIA H100 SXM 80GB"}}))
    times = {"queued_ts": 0.0, "first_token_ts": 0.02, "last_token_ts": 0.05, "input_toks": 64, "output_toks": 4}
    (place / "requests.jsonl").write_text("\n".join(json.dumps(times) for _ in range(2)))
    return place
